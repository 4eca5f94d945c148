"""Batches as brokers send them are decoded as they were written, and only what a consumer sees."""

from __future__ import annotations

import asyncio
import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from sequitur.errors import ReadTooLargeError, RetriableError
from sequitur.kafka.arrow_records import binary, headers
from sequitur.kafka.log_reading import Fetched, fetch, together
from sequitur.kafka.partition import SourcePartition
from sequitur.kafka.record_format import CODECS, HEADER_SIZE, Compression
from sequitur.kafka.stored_batches import (
    CREATE_TIME,
    NO_TIME,
    LogRecord,
    Record,
    batches_in,
    columns_in_pieces,
    columns_of,
    java_text,
    seen,
)
from tests.support.partition_logs import (
    ABORT,
    BY_BROKER,
    COMMIT,
    PACKED_BY,
    TRANSACTIONAL,
    batch,
    checked,
    marker,
)
from tests.support.record_bytes import record_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_LOG_APPEND_TIME: Final = 1
_optional_bytes = st.none() | st.binary(max_size=200)
_records = st.lists(
    st.tuples(
        st.integers(-(2**40), 2**62),
        _optional_bytes,
        _optional_bytes,
        st.lists(st.tuples(st.text(max_size=8), _optional_bytes), max_size=3).map(tuple)
        | st.integers(30, 40).map(lambda count: (("h", b"v"),) * count),
    ),
    min_size=1,
    max_size=20,
)


def _value(value: bytes, ms: int = 1) -> tuple[int, None, bytes, tuple[()]]:
    return ms, None, value, ()


def _rows(log: bytes, *aborted: tuple[int, int]) -> list[LogRecord]:
    """Read them in rows; in columns they are the same."""
    batches = list(seen(batches_in(log), aborted))
    found = [_plain(record) for batch in batches for record in batch.rows()]
    assert found == list(columns_of(batches).rows())
    return found


def _plain(record: Record) -> LogRecord:
    return LogRecord(
        record.offset,
        record.timestamp,
        record.key,
        record.value,
        tuple(record.headers),
        record.timestamp_type,
    )


def _values(log: bytes, *aborted: tuple[int, int]) -> list[bytes | None]:
    return [row.value for row in _rows(log, *aborted)]


@given(st.lists(st.tuples(_records, PACKED_BY), max_size=4))
def test_records_are_read_as_they_were_written(batches: Any) -> None:
    log, expected, base = b"", [], 7
    for records, codec in batches:
        log += batch(records, base=base, codec=codec)
        expected += [LogRecord(base + at, *record) for at, record in enumerate(records)]
        base += len(records) + 3
    assert _rows(log) == expected
    columns = columns_of(list(batches_in(log)))
    assert binary(columns.keys).to_pylist() == [row.key for row in expected]
    assert binary(columns.values).to_pylist() == [row.value for row in expected]
    assert headers(columns).to_pylist() == [
        [{"key": name, "value": value} for name, value in row.headers] or None for row in expected
    ]


@given(_records, st.integers(-2, 25), st.integers(-2, 25))
def test_a_part_has_the_records_between_two_offsets(records: Any, first: int, stop: int) -> None:
    columns = columns_of(list(batches_in(batch(records))))
    expected = [row for row in _rows(batch(records)) if first <= row.offset < stop]
    part = columns.between(first, max(first, stop))
    assert list(part.rows()) == expected
    assert len(headers(part)) == len(expected)


def test_compaction_leaves_gaps_and_empty_batches() -> None:
    kept = record_bytes(3, b"k", b"kept")
    raw = bytearray(batch([_value(b"x")] * 10, base=100))
    raw[8:12] = struct.pack(">i", HEADER_SIZE - 12 + len(kept))
    raw[57:61] = struct.pack(">i", 1)
    compacted = checked(raw[:HEADER_SIZE] + kept)
    raw[8:12], raw[57:61] = struct.pack(">i", HEADER_SIZE - 12), bytes(4)
    raw[:8] = struct.pack(">q", 110)
    log = compacted + checked(raw[:HEADER_SIZE])
    assert [(row.offset, row.value) for row in _rows(log)] == [(103, b"kept")]
    assert [batch.last_offset for batch in batches_in(log)] == [109, 119]


def test_times_are_the_brokers_where_it_gives_them() -> None:
    times = [(5, None, b"", ()), (9, None, b"", ())]
    log = batch(times) + batch(times, base=2, attributes=BY_BROKER)
    log += batch([(-1, None, b"", ())], base=4)
    assert [(row.timestamp, row.timestamp_type) for row in _rows(log)] == [
        (5, CREATE_TIME), (9, CREATE_TIME), (9, _LOG_APPEND_TIME), (9, _LOG_APPEND_TIME),
        (-1, CREATE_TIME),
    ]  # fmt: skip


def test_records_of_aborted_transactions_are_not_seen() -> None:
    """Of two producers that write in turn, and of one that aborts and then commits."""
    log = (
        batch([_value(b"a1")], base=0, attributes=TRANSACTIONAL, pid=1)
        + batch([_value(b"b1")], base=1, attributes=TRANSACTIONAL, pid=2)
        + batch([_value(b"plain")], base=2, pid=1)
        + batch([_value(b"a2")], base=3, attributes=TRANSACTIONAL, pid=1)
        + marker(4, 1, ABORT)
        + marker(5, 2, COMMIT)
        + batch([_value(b"a3")], base=6, attributes=TRANSACTIONAL, pid=1)
        + marker(7, 1, COMMIT)
    )
    assert _values(log, (1, 0)) == [b"b1", b"plain", b"a3"]
    assert _values(log) == [b"a1", b"b1", b"plain", b"a2", b"a3"]


def test_a_transaction_that_begins_within_a_batch_is_left_out() -> None:
    """A broker may say that it begins at any offset of its first batch."""
    log = batch([_value(b"x")] * 5, base=10, attributes=TRANSACTIONAL, pid=1)
    assert _values(log + marker(15, 1, ABORT), (1, 12)) == []


def test_markers_without_records_are_passed_over() -> None:
    raw = bytearray(marker(0, 1, ABORT))[:HEADER_SIZE]
    raw[8:12], raw[57:61] = struct.pack(">i", HEADER_SIZE - 12), bytes(4)
    assert _values(checked(raw) + batch([_value(b"x")], base=1, pid=1), (1, 0)) == [b"x"]


@given(_records, st.integers(1, 200))
def test_an_answer_that_ends_within_a_batch_has_those_before_it(records: Any, cut: int) -> None:
    whole = batch(records)
    log = whole + whole
    part = log[: max(len(whole), len(log) - cut)]
    assert [batch.count for batch in batches_in(part)] == [len(records)]


def test_records_of_every_length_of_a_length_are_read() -> None:
    """Lengths are numbers of one byte up to 63, of two up to 8,191, and of three behind that."""
    sizes = [*range(50, 64), *range(8_170, 8_192), (1 << 20) - 20, 1 << 20]
    rows = _rows(batch([_value(bytes(size)) for size in sizes]))
    assert [len(row.value or b"") for row in rows] == sizes


@pytest.mark.parametrize("at", [22, 30, 57, 61, 70, -1])
def test_damage_is_found(at: int) -> None:
    raw = bytearray(batch([_value(b"value" * 9)]))
    raw[at] ^= 0x04
    with pytest.raises(RetriableError, match="checksum"):
        list(batches_in(bytes(raw)))


@given(st.integers(HEADER_SIZE, HEADER_SIZE + 60), st.integers(0, 255), PACKED_BY)
def test_what_cannot_be_is_an_error_and_no_row(at: int, byte: int, codec: Compression) -> None:
    """A checksum that fits does not make a batch."""
    raw = bytearray(batch([(1, b"key", b"value", (("h", b"v"),))] * 3, codec=codec))
    raw[min(at, len(raw) - 1)] = byte
    try:
        columns = columns_of(list(batches_in(checked(raw))))
    except RetriableError:
        return
    assert len(columns) == 3


def _answers(logs: list[bytes]) -> list[Fetched]:
    async def ask(_: Any) -> Any:
        told: list[Any] = [(number, 0, 100, 100, [], log) for number, log in enumerate(logs)]
        return SimpleNamespace(API_VERSION=4, topics=[("t", told)])

    places = {SourcePartition("t", number): 0 for number in range(len(logs))}
    return [*asyncio.run(fetch(ask, places)).values()]


@pytest.mark.parametrize("by", ["together", "columns", "rows"])
def test_damaged_records_are_told_with_their_partition_and_offsets(by: str) -> None:
    """Batches of several partitions are unpacked at once, and only one of them is damaged."""
    whole = batch([_value(b"v")] * 5)
    raw = bytearray(batch([_value(b"v")]))
    raw[HEADER_SIZE] = 0
    answers = _answers([whole, checked(raw), whole])
    read: dict[str, Callable[[], Iterable[object]]] = {
        "together": lambda: together(answers),
        "columns": lambda: (some for one in answers for some in one.columns()),
        "rows": lambda: (row for one in answers for row in one.rows()),
    }
    with pytest.raises(
        RetriableError, match=r"^t-1: (records from 0 to 0|the batch at offset 0): "
    ):
        list(read[by]())


def test_damage_on_the_way_is_told_with_its_partition() -> None:
    whole = batch([_value(b"v")])
    with pytest.raises(RetriableError, match=r"^t-1: the batch at offset 0 does not match"):
        _answers([whole, whole[:-1] + b"?"])


@pytest.mark.parametrize("codec", [*CODECS])
def test_what_is_unpacked_is_bounded_before_it_is_there(codec: Compression) -> None:
    """A batch may be a thousandth of what is in it."""
    log = batch([_value(bytes(1 << 20))], codec=codec)
    assert len(log) < 1 << 17
    batches = list(batches_in(log))
    assert columns_of(batches, (1 << 20) + 100).values.each() == [bytes(1 << 20)]
    with pytest.raises(ReadTooLargeError, match="more than 1048576 bytes"):
        columns_of(batches, 1 << 20)


def test_records_begin_behind_lengths_of_one_two_and_three_bytes() -> None:
    sizes = [*range(40, 80), *range(8_170, 8_200), 20_000]
    values = [b"v" * size for size in sizes]
    assert _values(batch([_value(value) for value in values])) == values


@pytest.mark.parametrize(("piece_bytes", "pieces"), [(1, 6), (9_000, 2), (1 << 20, 1)])
def test_batches_are_unpacked_in_pieces(piece_bytes: int, pieces: int) -> None:
    """However well they are packed; what is behind a piece is unpacked once that is asked for."""
    log = b"".join(batch([_value(bytes(4_000), 7)], base=base) for base in range(6))
    some = columns_in_pieces(list(batches_in(log)), None, piece_bytes)
    assert [one.offsets.tolist() for one in some] == [
        list(range(at, at + 6 // pieces)) for at in range(0, 6, 6 // pieces)
    ]
    (nothing,) = columns_in_pieces([], None, piece_bytes)
    assert not len(nothing)


def test_blocks_of_other_writers_are_unpacked() -> None:
    """Java writes snappy in blocks, and others do not; gzip may have several members."""
    import zlib  # noqa: PLC0415 - of this test alone

    import cramjam  # noqa: PLC0415

    plain = batch([_value(b"value" * 50)] * 4)
    records = plain[HEADER_SIZE:]
    halves = records[: len(records) // 2], records[len(records) // 2 :]
    members = [zlib.compressobj(wbits=31) for _ in halves]
    gzipped = b"".join(
        one.compress(half) + one.flush() for one, half in zip(members, halves, strict=True)
    )
    for code, packed in ((2, bytes(cramjam.snappy.compress_raw(records))), (1, gzipped)):
        raw = bytearray(plain[:HEADER_SIZE] + packed)
        raw[8:12] = struct.pack(">i", len(raw) - 12)
        raw[22] |= code
        assert _values(checked(raw)) == [b"value" * 50] * 4


@pytest.mark.parametrize("codec", [0, 1, 2])
@pytest.mark.parametrize("magic", [0, 1])
def test_batches_of_old_brokers_are_read(magic: Any, codec: int) -> None:
    log = b""
    for numbers in (range(2), range(2, 3)):
        builder = LegacyRecordBatchBuilder(magic, codec, 1 << 16)
        for number in numbers:
            builder.append(number, 1_000 + number, b"key" if number else None, b"value%d" % number)
        log += bytes(builder.build())
    log += batch([_value(b"new", 7)], base=3)
    time_ms, kind = (1_000, CREATE_TIME) if magic else (NO_TIME, NO_TIME)
    assert _rows(log) == [
        LogRecord(0, time_ms, None, b"value0", (), kind),
        LogRecord(1, time_ms + magic, b"key", b"value1", (), kind),
        LogRecord(2, time_ms + 2 * magic, b"key", b"value2", (), kind),
        LogRecord(3, 7, None, b"new", ()),
    ]
    if codec:
        with pytest.raises(ReadTooLargeError):
            columns_of(list(batches_in(log)), 1 << 20)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\xe9\xe9", "\ufffd" * 2),
        (b"\xc0\x80", "\ufffd" * 2),
        (b"a\xe2\x82", "a\ufffd"),
        (b"\xed\xa0\x80b", "\ufffdb"),
        (b"\xed\xa0", "\ufffd"),
        (b"\xf4\x90\x80\x80", "\ufffd" * 4),
        ("é\U0001f600".encode(), "é\U0001f600"),
    ],
)
def test_names_that_are_no_utf8_are_read_as_java_reads_them(raw: bytes, text: str) -> None:
    """By `new String(bytes, UTF_8)` of Java 17."""
    assert java_text(raw) == text
    changed = bytearray(batch([(1, None, b"", (("n" * len(raw), b"1"),))]))
    at = changed.index(b"n" * len(raw))
    changed[at : at + len(raw)] = raw
    assert _rows(checked(changed)) == [LogRecord(0, 1, None, b"", ((text, b"1"),))]
    columns = columns_of(list(batches_in(checked(changed))))
    assert headers(columns).to_pylist() == [[{"key": text, "value": b"1"}]]
