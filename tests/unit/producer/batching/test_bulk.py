"""Events laid out a column at a time are what the builder of single records makes of them."""

from __future__ import annotations

import asyncio
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sequitur.kafka.partition import KeyPartitioner
from sequitur.kafka.record_batch import new_builder, seal
from sequitur.kafka.records import EVENT_ID_HEADER
from sequitur.producer import IdempotentProducer, ProducerSettings, Record
from sequitur.producer.batching import accumulator
from sequitur.producer.batching.columns import BulkBuilder, Piece, columns_of, fill
from tests.support.fake_wire import FakeWire
from tests.support.producers import use
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.kafka.record_batch import Header

PREFIX = b"shop:"
BATCH_BYTES = 1 << 20

_small_bytes = st.binary(max_size=70)
_headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=70)), max_size=3)


@st.composite
def _chunks(draw: st.DrawFn) -> list[list[Record]]:
    """Chunks of records that are alike within each, all with keys or all without."""
    keyed = draw(st.booleans())
    chunks = []
    for _ in range(draw(st.integers(1, 3))):
        headers = draw(_headers)
        rows = draw(st.lists(st.tuples(_small_bytes, _small_bytes), min_size=1, max_size=80))
        chunks.append([Record(value, key if keyed else None, headers) for key, value in rows])
    return chunks


def _by_columns(
    chunks: list[list[Record]], partitions: int, first_event: int, times: list[int]
) -> dict[int, bytes]:
    """The batch of each partition, made a chunk at a time; without keys all go to partition 0."""
    builders: dict[int, BulkBuilder] = {}
    event = first_event
    for chunk, time_ms in zip(chunks, times, strict=True):
        columns = columns_of(chunk, KeyPartitioner(partitions), PREFIX, event)
        assert columns is not None
        pieces: list[Piece] = []
        start = 0
        for partition, end in zip(columns.partitions, columns.ends, strict=True):
            builder = builders.setdefault(partition or 0, BulkBuilder(BATCH_BYTES, time_ms))
            piece = builder.reserve(columns, start, end, time_ms)
            assert piece is not None
            assert piece.end == end
            pieces.append(piece)
            start = end
        fill(columns, pieces, event)
        event += len(chunk)
    return {partition: seal(builder, "none") for partition, builder in builders.items()}


def _one_by_one(
    chunks: list[list[Record]], partitions: int, first_event: int, times: list[int]
) -> dict[int, bytes]:
    builders: dict[int, list[Any]] = {}
    keys = KeyPartitioner(partitions)
    event = first_event
    for chunk, time_ms in zip(chunks, times, strict=True):
        for record in chunk:
            partition = 0 if record.key is None else keys.partition(record.key)
            entry = builders.setdefault(partition, [new_builder(BATCH_BYTES), 0])
            headers = [*record.headers, (EVENT_ID_HEADER, b"%b%d" % (PREFIX, event))]
            assert entry[0].append(entry[1], time_ms, record.key, record.value, headers)
            entry[1] += 1
            event += 1
    return {partition: seal(builder, "none") for partition, (builder, _) in builders.items()}


@given(
    _chunks(),
    st.integers(1, 4),
    st.integers(1_000, 9_000),
    st.integers(0, 2**41),
    st.lists(st.integers(0, 100), min_size=3, max_size=3),
)
@example([[Record(b"v" * 63, b"k" * 64, [("h", None)])] * 70], 1, 1_000, 0, [0, 0, 0])
def test_the_bytes_are_those_of_single_records(
    chunks: list[list[Record]], partitions: int, first_event: int, start_ms: int, steps: list[int]
) -> None:
    """Batches of columns and batches of single records are the same, byte for byte."""
    times = [start_ms + sum(steps[:place]) for place in range(len(chunks))]
    given_arguments = (chunks, partitions, first_event, times)
    assert _by_columns(*given_arguments) == _one_by_one(*given_arguments)


@pytest.mark.parametrize(
    "odd",
    [
        Record(b"v", b"k", (), 0),
        Record(b"v", b"k", (), None, 1),
        Record(None, b"k"),
        Record(b"v", None),
        Record(b"v", b"k", [("h", b"1")]),
        Record(b"v" * 9_000, b"k"),
        Record("text", b"k"),  # type: ignore[arg-type]
        Record(b"v", "text"),  # type: ignore[arg-type]
    ],
)
def test_what_is_not_alike_is_left_to_the_way_of_single_records(odd: Record) -> None:
    """One odd record among many makes no columns, wherever it stands."""
    alike = [Record(b"v", b"k")] * 10
    keys = KeyPartitioner(2)
    assert columns_of(alike, keys, PREFIX, 1_000) is not None
    assert columns_of([*alike, odd], keys, PREFIX, 1_000) is None
    assert columns_of([odd, *alike], keys, PREFIX, 1_000) is None


@pytest.mark.parametrize("headers", [[("h", "text")], [(b"h", b"1")], [("h",)], [None]])
def test_headers_that_are_none_are_left_to_the_way_of_single_records(headers: Any) -> None:
    """Bad headers, which all records share, make no columns: each record is refused by itself."""
    assert columns_of([Record(b"v", b"k", headers)] * 2, KeyPartitioner(2), PREFIX, 1_000) is None


def test_ids_of_unlike_length_make_no_columns() -> None:
    """Where the event number gets another digit, the way of single records takes over."""
    assert columns_of([Record(b"v", b"k")] * 2, KeyPartitioner(2), PREFIX, 999) is None


def test_a_batch_takes_no_more_than_its_bytes() -> None:
    """A batch is full where the next event would not fit, and takes none that came too late."""
    columns = columns_of([Record(b"v" * 100, b"k")] * 20, KeyPartitioner(1), PREFIX, 1_000)
    assert columns is not None
    builder = BulkBuilder(1_000, 0)
    piece = builder.reserve(columns, 0, 20, 0)
    assert piece is not None
    assert 0 < piece.end < 20
    assert builder.size() <= 1_000
    assert builder.reserve(columns, piece.end, 20, 0) is None
    assert BulkBuilder(1_000, 0).reserve(columns, 0, 20, 1 << 13) is None
    assert BulkBuilder(1_000, 5).reserve(columns, 0, 20, 4) is None


async def _sent(
    events: Sequence[Record], monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> list[list[tuple[bytes | None, bytes | None, tuple[Header, ...]]]]:
    """What the topic's three partitions hold once the events were sent."""
    wire = FakeWire(partitions=3)
    use(wire, monkeypatch)
    async with IdempotentProducer("ignored:9092", ProducerSettings(**settings)) as producer:
        result = await (await producer.send_many("events", events))
    assert result.persisted == len(events)
    return [
        [
            (record.key, record.value, tuple(h for h in record.headers if h[0] != EVENT_ID_HEADER))
            for record in wire.records["events", partition]
        ]
        for partition in range(3)
    ]


@pytest.mark.parametrize("batch_size", ["2KiB", "256KiB"])
async def test_a_bulk_lands_where_single_records_would(
    batch_size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks with and without odd records give the same log as records added one by one."""
    trace: list[Header] = [("trace", b"t")]
    events = [Record(b"v%d" % n, b"k%d" % (n % 50), trace) for n in range(9_000)]
    events[4_500] = Record(b"odd", b"k7", [("own", None)])
    bulk = await _sent(events, monkeypatch, batch_size=batch_size)
    monkeypatch.setattr(accumulator, "BULK_RECORDS", 1 << 30)
    assert bulk == await _sent(events, monkeypatch, batch_size=batch_size)


async def test_a_bulk_without_keys_goes_on_to_other_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Events without a key fill one batch after the other, and not all in one partition."""
    events = [Record(b"%d" % number) for number in range(9_000)]
    held = await _sent(events, monkeypatch, batch_size="8KiB")
    assert sorted(int(value or b"") for part in held for _, value, _ in part) == list(range(9_000))
    assert sum(bool(part) for part in held) > 1


async def test_singles_between_bulks_keep_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = FakeWire()
    use(wire, monkeypatch)
    async with IdempotentProducer("ignored:9092") as producer:
        for start in range(0, 3_000, 1_000):
            bulk = [Record(b"%d" % number, b"k") for number in range(start, start + 999)]
            await producer.send_many("events", bulk)
            await producer.send("events", b"%d" % (start + 999), b"k")
        await asyncio.wait_for(producer.flush(), PATIENCE_S)
    values = [int(record.value or b"") for record in wire.records["events", 0]]
    assert values == list(range(3_000))
    ids = [dict(record.headers)[EVENT_ID_HEADER] for record in wire.records["events", 0]]
    assert [int((event_id or b"").rpartition(b":")[2]) for event_id in ids] == list(range(3_000))


async def test_the_first_bulk_does_not_stop_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lays out columns is loaded in another thread; until then records go one by one."""
    loading, loaded = threading.Event(), threading.Event()

    def slow_import(name: str) -> Any:
        loading.set()
        assert loaded.wait(PATIENCE_S)
        return import_module(name)

    monkeypatch.setattr(accumulator, "import_module", slow_import)
    wire = FakeWire()
    use(wire, monkeypatch)
    async with IdempotentProducer("ignored:9092") as producer:
        try:
            first = await producer.send_many("events", [b"1"] * 1_000)
            assert await asyncio.to_thread(loading.wait, 30)
            await asyncio.wait_for(first.wait_completed(), PATIENCE_S)
            assert first.persisted == 1_000
        finally:
            loaded.set()
        assert (await (await producer.send_many("events", [b"2"] * 1_000))).persisted == 1_000
