"""A cursor in a group's metadata, or in chunks: what was written is read, and nothing else is."""

from __future__ import annotations

import re
import struct

import google_crc32c
import pytest

from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity
from sequitur.consumer.subscription.redeliveries import Redeliveries, RedeliverySpan
from sequitur.consumer.subscription.stored_pieces import (
    METADATA_LIMIT,
    StoredPieces,
    chunk_key,
    is_chunk_of,
    pieces_of,
    read_pointer,
    read_stored,
)
from sequitur.errors import (
    CursorChunksError,
    CursorDamagedError,
    CursorError,
    CursorVersionError,
    ForeignCursorError,
    StateFormatError,
)
from tests.support.cursors import state_of

IDENTITY = CursorIdentity("billing/eu", "orders", 3)
OTHER = CursorIdentity("billing/eu", "orders", 4)
END = 1 << 40


def _cursor(holes: int, identity: CursorIdentity = IDENTITY) -> Cursor:
    """Each distance differs, so that no compression makes it small."""
    cursor = Cursor(identity)
    for number in range(1, holes + 1):
        offset = number * 2000 + number * number % 997
        cursor.ack_range(offset, offset + 1 + number * number % 89, end=END)
    return cursor


def _pieces(
    holes: int = 600, generation: int = 7, identity: CursorIdentity = IDENTITY
) -> StoredPieces:
    return pieces_of(_cursor(holes, identity), generation=generation, limit=200, chunk_bytes=300)


def _values(pieces: StoredPieces) -> list[bytes]:
    return [chunk.value for chunk in pieces.chunks]


def _sealed(header: bytes, part: bytes) -> bytes:
    """A chunk with a sound checksum."""
    return header + struct.pack(">I", google_crc32c.value(header + part)) + part


def test_a_small_cursor_stands_in_the_metadata() -> None:
    """With its generation and what the caller stored with it; the offset is the cursor's."""
    cursor = _cursor(50)
    pieces = pieces_of(cursor, generation=3, carried=b"frontier")
    assert (pieces.offset, pieces.chunks) == (0, ())
    assert len(pieces.metadata) <= METADATA_LIMIT
    assert pieces.metadata.isascii()
    assert read_pointer(pieces.metadata) is None
    stored = read_stored(pieces.metadata, [], IDENTITY, offset=0)
    assert state_of(stored.cursor) == state_of(cursor)
    assert (stored.generation, stored.carried) == (3, b"frontier")


def test_a_large_cursor_stands_in_chunks() -> None:
    """In any order they are one cursor; the metadata names them."""
    cursor = _cursor(600)
    pieces = pieces_of(cursor, generation=7, carried=b"x", limit=200, chunk_bytes=300)
    pointer = read_pointer(pieces.metadata)
    assert pointer is not None
    assert pieces.offset == 0
    assert len(pieces.metadata) <= 200
    assert pointer.keys(IDENTITY) == [chunk.key for chunk in pieces.chunks]
    assert pointer.count == len(pieces.chunks) > 2
    stored = read_stored(pieces.metadata, reversed(_values(pieces)), IDENTITY, offset=0)
    assert state_of(stored.cursor) == state_of(cursor)
    assert (stored.generation, stored.carried) == (7, b"x")


@pytest.mark.parametrize("limit", [200, METADATA_LIMIT])
def test_deliveries_come_back_with_a_cursor(limit: int) -> None:
    """And where none are given nothing comes back, and no bytes of the caller's either."""
    cursor = _cursor(100)
    redeliveries = Redeliveries((RedeliverySpan(3, 9, 4),))
    for given in (redeliveries, Redeliveries()):
        pieces = pieces_of(cursor, generation=1, redeliveries=given, limit=limit)
        stored = read_stored(pieces.metadata, _values(pieces), IDENTITY, offset=0)
        assert (stored.redeliveries, stored.carried) == (given, b"")


def test_the_limit_is_what_fits() -> None:
    """A text as long as the limit stands in the metadata, one that is longer does not."""
    cursor = _cursor(600)
    length = len(pieces_of(cursor, generation=1, limit=1 << 20).metadata)
    assert pieces_of(cursor, generation=1, limit=length).chunks == ()
    assert len(pieces_of(cursor, generation=1, limit=length - 1).chunks) == 1


def test_a_cursor_comes_back_from_the_least_pieces() -> None:
    """Chunks of one byte, a limit as long as the pointer, and the largest generation."""
    cursor, generation = _cursor(50), (1 << 64) - 1
    pieces = pieces_of(cursor, generation=generation, limit=200, chunk_bytes=1)
    limit = len(pieces.metadata)
    assert pieces_of(cursor, generation=generation, limit=limit, chunk_bytes=1) == pieces
    with pytest.raises(ValueError, match=f"has {limit} characters, and the limit is {limit - 1}"):
        pieces_of(cursor, generation=generation, limit=limit - 1, chunk_bytes=1)
    stored = read_stored(pieces.metadata, _values(pieces), IDENTITY, offset=0)
    assert (state_of(stored.cursor), stored.generation) == (state_of(cursor), generation)


@pytest.mark.parametrize("holes", [10, 100, 300, 1000, 3000, 100_000])
def test_the_metadata_never_exceeds_the_limit(holes: int) -> None:
    """However many ranges there are, and all of them come back."""
    cursor = _cursor(holes)
    pieces = pieces_of(cursor, generation=1)
    assert len(pieces.metadata) <= METADATA_LIMIT
    stored = read_stored(pieces.metadata, _values(pieces), IDENTITY, offset=0)
    assert stored.cursor.acked_range_count == holes


def test_a_generation_leaves_the_chunks_of_the_one_before() -> None:
    """A writer that dies in between harms nothing; the generation before is written over."""
    keys = [{chunk.key for chunk in _pieces(generation=number).chunks} for number in (7, 8, 9)]
    assert keys[0] & keys[1] == set()
    assert keys[0] == keys[2]


def test_keys_differ_by_cursor() -> None:
    """Also where a subscription's name looks like a part of the key."""
    names = [CursorIdentity(name, "orders", 3) for name in ("a", "0/a", "0/0/a", "3/0/0/a")]
    keys = {chunk.key for name in (*names, OTHER) for chunk in _pieces(identity=name).chunks}
    assert len(keys) == sum(len(_pieces(identity=name).chunks) for name in (*names, OTHER))


def test_a_missing_chunk_is_refused() -> None:
    pieces = _pieces()
    values = _values(pieces)
    missing = f"of {len(values)} chunks of generation 7 are missing$"
    for at in range(len(values)):
        with pytest.raises(CursorChunksError, match=f"^{IDENTITY}: 1 {missing}"):
            read_stored(pieces.metadata, values[:at] + values[at + 1 :], IDENTITY, offset=0)
    with pytest.raises(CursorChunksError, match=f"^{IDENTITY}: {len(values)} {missing}"):
        read_stored(pieces.metadata, [], IDENTITY, offset=0)


def test_a_doubled_chunk_is_refused() -> None:
    pieces = _pieces()
    values = _values(pieces)
    for given in ([*values, values[1]], [values[0], *values[:-1]]):
        with pytest.raises(CursorChunksError, match="twice"):
            read_stored(pieces.metadata, given, IDENTITY, offset=0)


@pytest.mark.parametrize("generation", [5, 6, 8, 9])
def test_mixed_generations_are_refused(generation: int) -> None:
    """One chunk of another writing, in the place of its like."""
    pieces, others = _pieces(generation=7), _pieces(generation=generation)
    values = _values(pieces)
    values[1] = _values(others)[1]
    with pytest.raises(CursorChunksError, match=rf"generation {generation} among .* 7"):
        read_stored(pieces.metadata, values, IDENTITY, offset=0)


@pytest.mark.parametrize("mixed", [1, 2, 100])
def test_two_writers_of_a_generation_are_refused(mixed: int) -> None:
    """An older life and a newer one took the same number: their chunks make up no cursor."""
    pieces = _pieces()
    cursor = _cursor(600)
    cursor.ack(500 * 2000 - 1, end=END)
    values = _values(pieces_of(cursor, generation=7, limit=200, chunk_bytes=300))
    given = values[:mixed] + _values(pieces)[mixed:]
    told = "the chunks of generation 7 do not make up the cursor that the pointer names"
    with pytest.raises(CursorChunksError, match=f"^{IDENTITY}: {told}$"):
        read_stored(pieces.metadata, given, IDENTITY, offset=0)


def test_chunks_beside_a_whole_cursor_are_refused() -> None:
    text = pieces_of(_cursor(3), generation=1).metadata
    with pytest.raises(CursorChunksError, match="has none"):
        read_stored(text, _values(_pieces()), IDENTITY, offset=0)


@pytest.mark.parametrize("limit", [200, METADATA_LIMIT])
def test_another_cursor_is_refused(limit: int) -> None:
    pieces = pieces_of(_cursor(100, OTHER), generation=1, limit=limit)
    with pytest.raises(ForeignCursorError, match=r"orders-4, .* orders-3"):
        read_stored(pieces.metadata, _values(pieces), IDENTITY, offset=0)


def test_an_offset_that_somebody_else_committed_is_refused() -> None:
    """The metadata beside it says otherwise."""
    pieces = pieces_of(_cursor(3), generation=1)
    with pytest.raises(CursorDamagedError, match=r"the offset 9 is committed, .* at 0"):
        read_stored(pieces.metadata, [], IDENTITY, offset=9)


@pytest.mark.parametrize("limit", [200, METADATA_LIMIT])
def test_every_changed_character_is_refused(limit: int) -> None:
    """Of a pointer, and of a whole cursor: changed, left out, doubled, cut off, added."""
    pieces = pieces_of(_cursor(60 if limit > 200 else 600), generation=7, limit=limit)
    text, values = pieces.metadata, _values(pieces)
    assert bool(values) == (limit == 200)
    changed = {text[:at] for at in range(len(text))} | {f"{text}{more}" for more in "\n A=\0"}
    for at, character in enumerate(text):
        for other in "0159afAZ+/= .\n\0\xe4":
            changed.add(text[:at] + other + text[at + 1 :])
        changed.add(text[:at] + text[at + 1 :])
        changed.add(text[:at] + character + text[at:])
    changed.discard(text)
    for wrong in changed:
        with pytest.raises((CursorDamagedError, CursorVersionError)):
            read_stored(wrong, values, IDENTITY, offset=0)


def test_every_changed_byte_of_a_chunk_is_refused() -> None:
    pieces = _pieces()
    first, *rest = _values(pieces)
    for at in range(len(first)):
        changed = first[:at] + bytes([first[at] ^ (1 + at % 255)]) + first[at + 1 :]
        for wrong in (changed, first[:at], first[:at] + first[at + 1 :], first + first[: at + 1]):
            with pytest.raises(CursorDamagedError):
                read_stored(pieces.metadata, [wrong, *rest], IDENTITY, offset=0)


def test_what_is_wrong_with_a_whole_cursor_is_told() -> None:
    """No text of base64; or one that decodes alike, but that nobody wrote."""
    text = pieces_of(_cursor(60), generation=7).metadata
    head, _, data = text.rpartition(" ")
    for wrong in (f"{head} {data[:9]}.{data[9:]}", f"{head} {data[:-1]}"):
        with pytest.raises(
            CursorDamagedError, match=r"^the metadata of a cursor is not in base64$"
        ):
            read_stored(wrong, [], IDENTITY, offset=0)
    with pytest.raises(CursorDamagedError, match=r"^the metadata of a cursor was changed$"):
        read_stored(text.replace("/1 ", "/01 "), [], IDENTITY, offset=0)


def test_what_is_wrong_with_a_pointer_is_told() -> None:
    """No pointer's form; or one whose numbers nobody wrote."""
    text = _pieces().metadata
    for wrong, told in (
        (text.replace("count=", "counts="), "^the pointer to a cursor's chunks cannot be read$"),
        (
            text.replace("count=", "count=1"),
            "^the checksum of a pointer to a cursor's chunks is wrong$",
        ),
    ):
        with pytest.raises(CursorDamagedError, match=told):
            read_pointer(wrong)


def test_what_is_wrong_with_a_chunk_is_told() -> None:
    """Whose cursor, too; a sound checksum does not make a chunk that the pointer names."""
    pieces = _pieces()
    first, *rest = _values(pieces)
    header, part, count = first[:25], first[29:], len(pieces.chunks)
    behind = header[:17] + struct.pack(">I", count) + header[21:]
    cut = "a stored chunk was cut, or is something else"
    for wrong, told in (
        (first[:28], "28 bytes are too few for a chunk"),
        (first[:29], cut),
        (_sealed(header, part[:-1]), cut),
        (_sealed(b"SQCR" + header[4:], part), cut),
        (first[:-1] + bytes([first[-1] ^ 1]), "the checksum of a chunk is wrong"),
        (
            _sealed(behind, part),
            f"chunk {count} of {count} of generation 7 among those of generation 7",
        ),
    ):
        with pytest.raises(CursorError, match=f"^{re.escape(f'{IDENTITY}: {told}')}$"):
            read_stored(pieces.metadata, [wrong, *rest], IDENTITY, offset=0)


@pytest.mark.parametrize("text", ["", "committed by hand", '{"offset": 3}', "sequitur-cursor/"])
def test_metadata_of_others_is_refused(text: str) -> None:
    """Such as what a tool leaves when it sets the offset."""
    with pytest.raises(CursorDamagedError, match=r"^the metadata of the offset is not that of a "):
        read_stored(text, [], IDENTITY, offset=0)


def test_a_newer_format_is_refused_by_name() -> None:
    """Of the metadata, and of a chunk whose checksum is sound."""
    pieces = _pieces()
    first, *rest = _values(pieces)
    newer = _sealed(b"SQCK\2" + first[5:25], first[29:])
    with pytest.raises(
        CursorVersionError, match=f"^{IDENTITY}: a chunk of format 2, this version reads 1"
    ):
        read_stored(pieces.metadata, [newer, *rest], IDENTITY, offset=0)
    with pytest.raises(CursorVersionError, match="format 2, this version reads 1"):
        read_pointer("sequitur-cursor/2 whole x")


@pytest.mark.parametrize(
    ("generation", "limit", "chunk_bytes"),
    [(-1, 200, 1), (1 << 64, 200, 1), (1, 10, 1), (1, 200, 0)],
)
def test_what_cannot_be_written_is_a_mistake(generation: int, limit: int, chunk_bytes: int) -> None:
    """A generation of more than 64 bits, no room for a pointer, chunks of nothing."""
    with pytest.raises(ValueError, match=r"64 bits|characters|hold nothing") as caught:
        pieces_of(_cursor(600), generation=generation, limit=limit, chunk_bytes=chunk_bytes)
    assert not isinstance(caught.value, CursorError | StateFormatError)


def test_chunks_are_known_by_their_subscription() -> None:
    """They are deleted with it, and no other's are; its name may have slashes."""
    for generation in (7, 8):
        key = chunk_key(CursorIdentity("a/b/c", "orders", 3), generation, 12)
        assert is_chunk_of(key, "a/b/c")
        assert not any(is_chunk_of(key, other) for other in ("c", "b/c", "a", "12/a/b/c", ""))
    assert not is_chunk_of(b"orders/3/1/a", "a")
    assert not is_chunk_of(b"a", "a")
