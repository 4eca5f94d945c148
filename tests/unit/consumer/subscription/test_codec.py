"""Bytes of a cursor: all of it comes back, and nothing else is ever read as one."""

from __future__ import annotations

import base64
import struct
import tracemalloc
import zlib
from typing import TYPE_CHECKING

import google_crc32c
import msgspec
import pytest

from sequitur.consumer.subscription.codec import CURSOR_VERSION, decode_cursor, encode_cursor
from sequitur.consumer.subscription.cursor import LARGEST_OFFSET, Cursor, CursorIdentity
from sequitur.consumer.subscription.redeliveries import Redeliveries, RedeliverySpan
from sequitur.errors import CursorDamagedError, CursorError, CursorVersionError, ForeignCursorError
from tests.support.cursors import state_of
from tests.support.golden import golden_text

if TYPE_CHECKING:
    from collections.abc import Sequence

IDENTITY = CursorIdentity("billing", "orders", 3)
_HEADER = struct.Struct(">4sBQQ")
_LARGE = 1 << 62
_FEW = "bytes are too few for a cursor"
_BEGIN = "the bytes do not begin as a cursor does"
_CHECKSUM = "the checksum of a cursor is wrong"
_META = "the meta of a cursor cannot be read"
_COLUMNS = "the columns of a cursor make no sense"
_POSITIONS = "the positions and counts of billing on orders-3 make no sense"
_RANGES = "the ranges of a cursor make no sense"
_BEYOND = "the ranges of a cursor reach beyond the largest offset"
_DELIVERIES = "the deliveries of a cursor make no sense"


def _cursor() -> Cursor:
    cursor = Cursor(IDENTITY, start=40)
    for first, stop in ((50, 60), (61, 62), (70_000, 1 << 40)):
        cursor.ack_range(first, stop, end=1 << 41)
    cursor.ack_absent(42, 44, end=100)
    cursor.ack(55, end=100)
    cursor.seek(80, end=100)
    return cursor


def _framed(
    body: bytes, *, version: int = CURSOR_VERSION, length: int = 0, unpacked: int = 0
) -> bytes:
    header = _HEADER.pack(
        b"SQCR", version, length or len(body), unpacked or len(zlib.decompress(body))
    )
    checksum = google_crc32c.extend(google_crc32c.value(header), body)
    return header + struct.pack(">I", checksum) + body


def _written(
    *,
    positions: tuple[int, int] = (9, 10),
    counts: tuple[int, int, int] = (0, 0, 0),
    lost: int = 0,
    distances: Sequence[int] = (),
    lengths: Sequence[int] = (),
    ranges: int | None = None,
    widths: tuple[int, int] = (8, 8),
    spans: Sequence[Sequence[int]] = (),
) -> bytes:
    """A cursor that another program might have written; numbers in columns of eight bytes."""
    count = len(distances) if ranges is None else ranges
    of_spans = [len(spans[0]) if spans else 0, (8, 8, 8)]
    meta = msgspec.msgpack.encode(
        ["billing", "orders", 3, *positions, *counts, count, *widths, 0, b"", lost, *of_spans]
    )
    columns = b"".join(
        bytes((number >> (8 * place)) & 255 for place in range(8) for number in numbers)
        for numbers in (distances, lengths, *spans)
    )
    body = zlib.compress(struct.pack(">I", len(meta)) + meta + columns)
    return _framed(body)


def test_a_cursor_comes_back_whole() -> None:
    """Positions, counts and all ranges; and what the caller stored with it."""
    cursor = _cursor()
    stored = decode_cursor(encode_cursor(cursor, generation=7, carried=b"frontier"), IDENTITY)
    assert state_of(stored.cursor) == state_of(cursor)
    assert (stored.generation, stored.carried) == (7, b"frontier")
    cursor.ack_lost(40, 41, end=100)
    stored = decode_cursor(encode_cursor(cursor), IDENTITY)
    assert state_of(stored.cursor) == state_of(cursor)
    assert (stored.generation, stored.carried) == (0, b"")


@pytest.mark.parametrize(("length", "width"), [(1, 1), (255, 1), (256, 2), (65_535, 2)])
def test_a_column_is_as_wide_as_its_largest_number(length: int, width: int) -> None:
    """In bytes; the other column, of the distances, has three."""
    cursor = Cursor(IDENTITY)
    for first in (1, 1_000_001):
        cursor.ack_range(first, first + length, end=1 << 21)
    unpacked = zlib.decompress(encode_cursor(cursor)[25:])
    columns = unpacked[4 + struct.unpack_from(">I", unpacked)[0] :]
    assert len(columns) == 2 * 3 + 2 * width


@pytest.mark.parametrize("start", [0, LARGEST_OFFSET])
def test_a_cursor_without_ranges_comes_back(start: int) -> None:
    """A new one, at the first offset and at the largest."""
    cursor = Cursor(IDENTITY, start=start)
    assert state_of(decode_cursor(encode_cursor(cursor), IDENTITY).cursor) == state_of(cursor)


def test_the_largest_offset_comes_back() -> None:
    """A range may stop where 63 bits end."""
    cursor = Cursor(IDENTITY)
    cursor.ack_range(5, LARGEST_OFFSET, end=LARGEST_OFFSET)
    decoded = decode_cursor(encode_cursor(cursor), IDENTITY).cursor
    assert list(decoded.acked_ranges()) == [(5, LARGEST_OFFSET)]


def test_ranges_near_the_largest_offset_come_back() -> None:
    """Their sum in floating point is rounded up beyond it."""
    cursor = Cursor(IDENTITY)
    first = (1 << 63) - 4096
    for start, stop in ((0, 513), (1026, 1539), (2052, 3152)):
        cursor.ack_range(first + start, first + stop, end=LARGEST_OFFSET)
    decoded = decode_cursor(encode_cursor(cursor), IDENTITY).cursor
    assert list(decoded.acked_ranges()) == list(cursor.acked_ranges())


def test_a_decoded_cursor_takes_acks() -> None:
    """Its ranges are no copy that stands still."""
    decoded = decode_cursor(encode_cursor(_cursor()), IDENTITY).cursor
    assert decoded.ack_range(40, 61, end=1 << 41) == 2 + 6 + 1
    assert (decoded.mark_delete, decoded.acked_range_count) == (61, 1)


def test_every_changed_byte_is_refused() -> None:
    data = encode_cursor(_cursor(), carried=b"carried")
    for at in range(len(data)):
        told = _BEGIN if at < 4 else "a cursor of .* bytes has" if 5 <= at < 13 else _CHECKSUM
        for change in range(1, 256):
            changed = data[:at] + bytes([data[at] ^ change]) + data[at + 1 :]
            with pytest.raises(CursorDamagedError, match=f"^{told}"):
                decode_cursor(changed, IDENTITY)


def test_every_cut_is_refused() -> None:
    """At its end, at its beginning, in the middle; and bytes that are too many."""
    data = encode_cursor(_cursor())
    for at in range(len(data)):
        for cut in (data[:at], data[at + 1 :], data[:at] + data[at + 1 :]):
            with pytest.raises(CursorDamagedError):
                decode_cursor(cut, IDENTITY)
    for longer in (data + b"\0", data + data, b"\0" + data):
        with pytest.raises(CursorDamagedError):
            decode_cursor(longer, IDENTITY)


@pytest.mark.parametrize(
    "other",
    [
        CursorIdentity("audit", "orders", 3),
        CursorIdentity("billing", "refunds", 3),
        CursorIdentity("billing", "orders", 4),
    ],
)
def test_another_cursor_is_refused_by_name(other: CursorIdentity) -> None:
    with pytest.raises(ForeignCursorError, match=f"billing on orders-3, .* {other}"):
        decode_cursor(encode_cursor(_cursor()), other)


def test_deliveries_come_back() -> None:
    """Those of messages that are not acked, and no others."""
    spans = [(30, 45, 1), (45, 46, 7), (69_999, 1 << 40, 300)]
    redeliveries = Redeliveries(tuple(map(RedeliverySpan._make, spans)))
    cursor = _cursor()
    assert cursor.committed_offset == 40
    stored = decode_cursor(encode_cursor(cursor, redeliveries=redeliveries), IDENTITY)
    assert stored.redeliveries.spans == ((40, 45, 1), *spans[1:])
    assert state_of(stored.cursor) == state_of(cursor)
    written = _written(spans=((3, 0), (1, 2), (2, 1)))
    assert decode_cursor(written, IDENTITY).redeliveries.spans == ((13, 14, 2), (14, 16, 1))


def test_a_cursor_of_format_2_has_no_deliveries() -> None:
    """What was out then counts as never delivered."""
    stored = decode_cursor(_written(distances=(3,), lengths=(2,), lost=4), IDENTITY)
    assert list(stored.cursor.acked_ranges()) == [(13, 15)]
    assert (stored.cursor.counts.lost, stored.redeliveries) == (4, Redeliveries())


@pytest.mark.parametrize(
    ("spans", "told"),
    [
        (((-1,), (1,), (1,)), _RANGES),
        (((1,), (0,), (1,)), _RANGES),
        (((1,), (1,), (0,)), _DELIVERIES),
        (((_LARGE, _LARGE), (9, 9), (1, 1)), _BEYOND),
    ],
)
def test_deliveries_that_make_no_sense_are_refused(
    spans: Sequence[Sequence[int]], told: str
) -> None:
    """Backwards, of no message, delivered never, beyond the largest offset."""
    with pytest.raises(CursorDamagedError, match=f"^{told}$"):
        decode_cursor(_written(spans=spans), IDENTITY)


def test_a_newer_format_is_refused_by_name() -> None:
    with pytest.raises(CursorVersionError, match=r"billing.* of format 4, this version reads 3"):
        decode_cursor(_framed(zlib.compress(b"whatever"), version=4), IDENTITY)


@pytest.mark.promise("sub-older-version-meets")
@pytest.mark.parametrize(
    ("data", "found"),
    [
        (base64.b64decode(golden_text("cursor.b64")), 1),
        (_framed(zlib.compress(b"of 2"), version=2), 2),
    ],
)
def test_a_cursor_of_an_older_version_is_refused_by_name(data: bytes, found: int) -> None:
    refused = rf"{IDENTITY}: a cursor of format {found}, this version reads 3: .* or delete the sub"
    with pytest.raises(CursorVersionError, match=refused):
        decode_cursor(data, IDENTITY)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", f"0 {_FEW}"),
        (b"SQCR", f"4 {_FEW}"),
        (b"x" * 24, f"24 {_FEW}"),
        (b"x" * 25, _BEGIN),
        (b"x" * 500, _BEGIN),
        (b'{"version":1}' * 9, _BEGIN),
    ],
)
def test_what_never_was_a_cursor_is_refused(data: bytes, told: str) -> None:
    """Other programs write metadata, too."""
    with pytest.raises(CursorDamagedError, match=f"^{told}$"):
        decode_cursor(data, IDENTITY)


def test_bytes_of_a_sound_form_are_read() -> None:
    """What the cases below get wrong, right."""
    cursor = decode_cursor(_written(distances=[1, 5], lengths=[4, 1]), IDENTITY).cursor
    assert (cursor.mark_delete, list(cursor.acked_ranges())) == (9, [(11, 15), (20, 21)])


@pytest.mark.parametrize(
    ("data", "told"),
    [
        pytest.param(
            _written(positions=(-2, 0)), _POSITIONS, id="mark-delete before the first offset"
        ),
        pytest.param(_written(positions=(9, 9)), _POSITIONS, id="read position that is acked"),
        pytest.param(
            _written(positions=(9, LARGEST_OFFSET + 1)), _POSITIONS, id="read position too large"
        ),
        pytest.param(_written(counts=(-1, 0, 0)), _POSITIONS, id="negative count consumed"),
        pytest.param(_written(counts=(0, -1, 0)), _POSITIONS, id="negative count absent"),
        pytest.param(_written(counts=(0, 0, -1)), _POSITIONS, id="negative count repeated"),
        pytest.param(_written(lost=-1), _POSITIONS, id="negative count lost"),
        pytest.param(
            _written(distances=[0], lengths=[1]), _RANGES, id="range that touches the position"
        ),
        pytest.param(_written(distances=[1, 0], lengths=[1, 1]), _RANGES, id="ranges that touch"),
        pytest.param(_written(distances=[1], lengths=[0]), _RANGES, id="empty range"),
        pytest.param(_written(distances=[_LARGE], lengths=[_LARGE]), _BEYOND, id="range too far"),
        pytest.param(
            _written(distances=[_LARGE] * 4, lengths=[_LARGE] * 4), _RANGES, id="sum wraps"
        ),
        pytest.param(
            _written(distances=[_LARGE] * 2, lengths=[_LARGE] * 2), _RANGES, id="sum wraps once"
        ),
        pytest.param(_written(distances=[1 << 63], lengths=[1]), _RANGES, id="negative distance"),
        pytest.param(
            _written(distances=[_LARGE], lengths=[_LARGE - 10]), _BEYOND, id="just too far"
        ),
        pytest.param(
            _written(distances=[1], lengths=[1], ranges=2),
            "a cursor has other than 2 ranges",
            id="a range too few",
        ),
        pytest.param(
            _written(distances=[1], lengths=[1], ranges=0),
            "a cursor has other than 0 ranges",
            id="a range too many",
        ),
        pytest.param(
            _written(distances=[1], lengths=[1], ranges=-1), _COLUMNS, id="negative ranges"
        ),
        pytest.param(
            _written(distances=[1], lengths=[1], widths=(9, 7)), _COLUMNS, id="nine bytes"
        ),
        pytest.param(
            _written(distances=[1], lengths=[1], widths=(7, 9)), _COLUMNS, id="nine bytes again"
        ),
        pytest.param(_written(widths=(0, 8)), _COLUMNS, id="no bytes"),
        pytest.param(
            _framed(b"no zlib", unpacked=7), "a cursor cannot be decompressed", id="not compressed"
        ),
        pytest.param(_framed(zlib.compress(b"abc")), _META, id="no meta"),
        pytest.param(_framed(zlib.compress(b"\0\0\0\1\xc1")), _META, id="meta of another form"),
    ],
)
def test_what_makes_no_sense_is_refused(data: bytes, told: str) -> None:
    """A sound checksum does not make a cursor."""
    with pytest.raises(CursorDamagedError, match=f"^{told}$"):
        decode_cursor(data, IDENTITY)


def test_damage_is_a_cursor_error() -> None:
    """Whoever catches all that a cursor may raise catches damage, too."""
    with pytest.raises(CursorError):
        decode_cursor(b"", IDENTITY)


def test_a_body_of_another_length_is_refused() -> None:
    """What it unpacks to makes sense; it is more or less than the header says, or more follows."""
    unpacked = zlib.decompress(encode_cursor(_cursor())[25:])
    body = zlib.compress(unpacked)
    length = len(unpacked)
    assert state_of(decode_cursor(_framed(body), IDENTITY).cursor) == state_of(_cursor())
    for wrong in (
        _framed(body, unpacked=length - 1),
        _framed(body, unpacked=length + 1),
        _framed(body[:-1], unpacked=length),
        _framed(body + b"y", unpacked=length),
        _framed(zlib.compress(unpacked + b"y"), unpacked=length),
    ):
        with pytest.raises(CursorDamagedError, match="does not unpack to"):
            decode_cursor(wrong, IDENTITY)


def test_a_body_takes_no_more_memory_than_it_says() -> None:
    """A few bytes may unpack to very many."""
    data = _framed(zlib.compress(bytes(1 << 24)), unpacked=9)
    tracemalloc.start()
    try:
        with pytest.raises(CursorDamagedError, match=r"^a cursor does not unpack to 9 bytes$"):
            decode_cursor(data, IDENTITY)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1 << 20


def test_a_wrong_length_is_refused_although_the_checksum_is_right() -> None:
    """The header says how long the body is."""
    body = zlib.compress(b"x" * 99)
    with pytest.raises(CursorDamagedError, match=f"of {len(body) + 1} bytes has {len(body)}"):
        decode_cursor(_framed(body, length=len(body) + 1), IDENTITY)
