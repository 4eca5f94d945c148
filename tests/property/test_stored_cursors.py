"""Any cursor that is written is read as it was; cut or changed, it is refused by name."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sequitur.consumer import (
    METADATA_LIMIT,
    Cursor,
    CursorDamagedError,
    CursorError,
    CursorIdentity,
    StateFormatError,
    decode_cursor,
    encode_cursor,
    in_metadata,
    read_stored,
)
from sequitur.consumer.subscription.cursor import LARGEST_OFFSET
from tests.support.cursors import state_of
from tests.support.examples import examples

_NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
_IDENTITIES = st.builds(CursorIdentity, _NAMES, _NAMES, st.integers(0, (1 << 31) - 1))
_GENERATIONS = st.integers(0, (1 << 64) - 1)


@st.composite
def cursors(draw: st.DrawFn) -> Cursor:
    """A cursor with up to some hundred ranges, near together or far apart."""
    reach = draw(st.sampled_from([300, 70_000, 1 << 33, LARGEST_OFFSET]))
    cursor = Cursor(draw(_IDENTITIES), start=draw(st.integers(0, reach - 1)))
    edges = draw(st.lists(st.integers(0, reach), max_size=300, unique=True).map(sorted))
    for first, stop in zip(edges[0::2], edges[1::2], strict=False):
        cursor.ack_range(first, stop, end=reach)
    cursor.seek(draw(st.integers(0, reach)), end=reach)
    absent = draw(st.integers(0, reach - 1))
    cursor.ack_absent(absent, absent + 1, end=reach)
    return cursor


@given(cursor=cursors(), generation=_GENERATIONS, carried=st.binary(max_size=200))
def test_bytes_are_read_as_they_were_written(
    cursor: Cursor, generation: int, carried: bytes
) -> None:
    written = encode_cursor(cursor, generation=generation, carried=carried)
    stored = decode_cursor(written, cursor.identity)
    assert state_of(stored.cursor) == state_of(cursor)
    assert (stored.generation, stored.carried) == (generation, carried)


@given(
    cursor=cursors(),
    generation=_GENERATIONS,
    limit=st.sampled_from([250, 600, METADATA_LIMIT]),
    chunk_bytes=st.integers(20, 2000),
    data=st.data(),
)
def test_pieces_are_read_as_they_were_written(
    cursor: Cursor, generation: int, limit: int, chunk_bytes: int, data: st.DataObject
) -> None:
    """In any order of the chunks; the metadata keeps to its limit."""
    pieces = in_metadata(cursor, generation=generation, limit=limit, chunk_bytes=chunk_bytes)
    assert len(pieces.metadata) <= limit
    values = data.draw(st.permutations([chunk.value for chunk in pieces.chunks]))
    stored = read_stored(pieces.metadata, values, cursor.identity, offset=pieces.offset)
    assert state_of(stored.cursor) == state_of(cursor)
    assert stored.generation == generation


@given(cursor=cursors(), data=st.data())
@settings(max_examples=examples(5))
def test_changed_bytes_are_never_read(cursor: Cursor, data: st.DataObject) -> None:
    """One byte or some, cut anywhere, or with a part of another cursor."""
    written = encode_cursor(cursor)
    at = data.draw(st.integers(0, len(written) - 1))
    how = data.draw(st.sampled_from(["flip", "cut", "leave out", "overwrite", "join"]))
    if how == "flip":
        change = data.draw(st.integers(1, 255))
        wrong = written[:at] + bytes([written[at] ^ change]) + written[at + 1 :]
    elif how == "cut":
        wrong = written[:at]
    elif how == "leave out":
        wrong = written[:at] + written[data.draw(st.integers(at + 1, len(written))) :]
    elif how == "overwrite":
        other = data.draw(st.binary(min_size=1, max_size=4))
        wrong = written[:at] + other + written[at + len(other) :]
    else:
        wrong = written[:at] + encode_cursor(data.draw(cursors()))[at:]
        assume(_keeps_the_header(wrong, written))
    assume(wrong != written)
    with pytest.raises(CursorDamagedError):
        decode_cursor(wrong, cursor.identity)


def _keeps_the_header(wrong: bytes, written: bytes) -> bool:
    """Say whether a join is not the other cursor from its first byte on."""
    return wrong != written and wrong[:25] == written[:25]


@given(cursor=cursors(), data=st.data())
@settings(max_examples=examples(5))
def test_changed_pieces_are_never_read(cursor: Cursor, data: st.DataObject) -> None:
    """A character of the metadata, a byte of a chunk, a chunk left out or doubled."""
    pieces = in_metadata(cursor, generation=3, limit=data.draw(st.sampled_from([250, 4096])))
    text, values = pieces.metadata, [chunk.value for chunk in pieces.chunks]
    kinds = ["metadata", "chunk", "left out", "doubled"] if values else ["metadata"]
    how = data.draw(st.sampled_from(kinds))
    chosen = data.draw(st.integers(0, max(len(values) - 1, 0)))
    if how == "metadata":
        at = data.draw(st.integers(0, len(text) - 1))
        other = data.draw(st.one_of(st.sampled_from("0123456789abcdefAZ+/= "), st.characters()))
        assume(other != text[at])
        text = text[:at] + other + text[at + 1 :]
    elif how == "chunk":
        value = values[chosen]
        at = data.draw(st.integers(0, len(value) - 1))
        change = data.draw(st.integers(1, 255))
        values[chosen] = value[:at] + bytes([value[at] ^ change]) + value[at + 1 :]
    elif how == "left out":
        del values[chosen]
    else:
        values.append(values[chosen])
    with pytest.raises(CursorError) as caught:
        read_stored(text, values, cursor.identity, offset=pieces.offset)
    assert isinstance(caught.value, StateFormatError)


@given(cursor=cursors(), other=_IDENTITIES)
def test_a_cursor_is_read_as_its_own_only(cursor: Cursor, other: CursorIdentity) -> None:
    assume(other != cursor.identity)
    with pytest.raises(CursorError, match="and not that of"):
        decode_cursor(encode_cursor(cursor), other)
