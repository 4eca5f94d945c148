"""Ranges of partitions are read to their ends, and no further, whatever happens to brokers."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest
from aiokafka.protocol.fetch import FetchRequest

from sequitur.errors import (
    LogRangeError,
    ReadTooLargeError,
    RetriableError,
    TopicError,
    UnansweredError,
)
from sequitur.kafka import connections, stored_batches
from sequitur.kafka import reader as kafka_reader
from sequitur.kafka.partition import OutputPartition, SourcePartition
from sequitur.kafka.reader import RACK, Reader
from sequitur.kafka.record_batch import Stamp, new_builder, seal, stamped
from sequitur.kafka.settings import KafkaSettings
from tests.support.fake_cluster import NODES, FakeCluster, FakeWire
from tests.support.partition_model import PartitionModel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.kafka.stored_batches import RecordColumns

_BATCHES: Final = 3
_ROWS: Final = 4
_ALL: Final = _BATCHES * _ROWS
_FORBIDDEN: Final = 29
_OUT_OF_RANGE: Final = 1
_KAFKA: Final = KafkaSettings(bootstrap_servers="unused:1")


class _Wire(FakeWire):
    """Does something before it asks."""

    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__(cluster)
        self.before: list[Any] = []
        self.code = 0

    def _fetched(self, node: int, topic: str, number: int, offset: int) -> tuple[Any, ...]:
        if self.before:
            self.before.pop(0)()
        found = super()._fetched(node, topic, number, offset)
        return (number, self.code, *found[2:-1], b"") if self.code else found


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Wire]:
    """Three partitions, each with a leader of its own, of as many batches."""
    cluster = FakeCluster(clock=lambda: 0.0)
    for number in range(NODES):
        model = PartitionModel(leader=number)
        for batch in range(_BATCHES):
            builder = new_builder(1 << 16)
            for row in range(_ROWS):
                value = b"%d-%d" % (number, batch * _ROWS + row)
                assert builder.append(row, 1_000 + row, None, value, []) is not None
            model.append(stamped(seal(builder, "none"), Stamp(number, 0, batch * _ROWS)), 0)
        model.replicate()
        cluster.partitions[OutputPartition("t", number)] = model
    wire = _Wire(cluster)
    monkeypatch.setattr(connections, "Wire", lambda *_args, **_options: wire)
    monkeypatch.setattr(connections, "_kept", {})
    yield wire
    connections.close_own()


def _values(number: int, first: int, stop: int) -> list[bytes | None]:
    return [b"%d-%d" % (number, offset) for offset in range(first, stop)]


def _read(reader: Reader, spans: dict[int, tuple[int, int]]) -> dict[int, list[bytes | None]]:
    """Read ranges in rows; in columns they are the same."""
    wanted = {SourcePartition("t", number): span for number, span in spans.items()}
    found: dict[int, list[bytes | None]] = {}
    for where, record in reader.rows(wanted):
        found.setdefault(where.partition, []).append(record.value)
        assert record.offset == spans[where.partition][0] + len(found[where.partition]) - 1
    parts: dict[int, list[RecordColumns]] = {}
    for where, columns in reader.columns(wanted, 1 << 20):
        parts.setdefault(where.partition, []).append(columns)
    in_columns = {
        number: [value for one in some for value in one.values.each()]
        for number, some in parts.items()
    }
    assert in_columns == found
    return found


def test_exact_ranges_are_read(wire: _Wire) -> None:
    spans = {0: (0, _ALL), 1: (2, 7), 2: (5, 5)}
    assert _read(Reader(kafka=_KAFKA), spans) == {0: _values(0, 0, _ALL), 1: _values(1, 2, 7)}
    assert _read(Reader(kafka=_KAFKA), {}) == {}
    assert wire.cluster.partitions[OutputPartition("t", 0)].end == _ALL


@pytest.mark.parametrize("stop", range(1, _ALL + 1))
def test_a_range_may_end_anywhere(wire: _Wire, stop: int) -> None:
    assert _read(Reader(kafka=_KAFKA), {1: (0, stop)}) == {1: _values(1, 0, stop)}
    assert wire.leader("t", 1) == 1


def test_who_leads_is_asked_again_only_if_a_leader_does_not_answer(
    wire: _Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of a job asks for a few rows; each question costs as much as some hundred of them."""
    asked: list[None] = []
    refresh = wire.refresh

    async def counted(*arguments: Any) -> bool:
        asked.append(None)
        return await refresh(*arguments)

    monkeypatch.setattr(wire, "refresh", counted)
    for _ in range(3):
        assert _read(Reader(kafka=_KAFKA), {0: (0, _ALL)}) == {0: _values(0, 0, _ALL)}
    assert len(asked) == 1
    wire.cluster.move(OutputPartition("t", 0), 0)
    assert _read(Reader(kafka=_KAFKA), {0: (0, _ALL)}) == {0: _values(0, 0, _ALL)}
    assert len(asked) > 1


def test_a_partition_that_moves_is_read_on(wire: _Wire) -> None:
    """The old leader says that it leads no more, and the brokers are asked again."""
    where = OutputPartition("t", 0)
    wire.before = [int, lambda: wire.cluster.move(where, 0)]
    assert _read(Reader(kafka=_KAFKA), {0: (0, _ALL)}) == {0: _values(0, 0, _ALL)}
    assert wire.leader("t", 0) == 1


def test_records_that_are_deleted_are_told_of(wire: _Wire) -> None:
    wire.cluster.partitions[OutputPartition("t", 0)].start = 6
    with pytest.raises(LogRangeError, match="partition 0 of 't' begins at offset 6, and not at 2"):
        _read(Reader(kafka=_KAFKA), {0: (2, 10)})
    assert [
        record.value
        for _, record in Reader(kafka=_KAFKA, passes_deleted=True).rows({
            SourcePartition("t", 0): (2, 10),
            SourcePartition("t", 1): (0, 1),
        })
    ] == [*_values(1, 0, 1), *_values(0, 6, 10)]  # fmt: skip


def test_a_log_that_ends_before_a_range_is_told_of_at_once(wire: _Wire) -> None:
    """As of a topic that was made anew, or that a leader has which lacks what others had."""
    spans = {SourcePartition("t", 0): (_ALL + 2, _ALL + 9)}
    told = f"partition 0 of 't' ends at offset {_ALL}, before {_ALL + 2}"
    for passes_deleted in (False, True):
        reader = Reader(kafka=_KAFKA, patience_s=5, passes_deleted=passes_deleted)
        with pytest.raises(LogRangeError, match=told):
            list(reader.rows(spans))
    assert wire.cluster.partitions[OutputPartition("t", 0)].end == _ALL


def test_a_range_that_does_not_end_is_told_of(wire: _Wire) -> None:
    wire.cluster.partitions[OutputPartition("t", 0)].shown = _ROWS
    reader = Reader(kafka=_KAFKA, patience_s=0.3)
    told = "not all of t-0 is read in 0.3 s: no broker answers, or a transaction in it stays open"
    with pytest.raises(UnansweredError, match=told):
        _read(reader, {0: (0, _ALL)})


def test_who_may_not_read_is_told_at_once(wire: _Wire) -> None:
    wire.code = _FORBIDDEN
    with pytest.raises(TopicError, match=r"t-0 cannot be read: .*TOPIC_AUTHORIZATION_FAILED"):
        _read(Reader(kafka=_KAFKA), {0: (0, _ALL)})


def test_columns_are_of_so_many_bytes_at_most(wire: _Wire) -> None:
    spans = {SourcePartition("t", number): (0, _ALL) for number in range(NODES)}
    with pytest.raises(ReadTooLargeError):
        list(Reader(kafka=_KAFKA).columns(spans, 100))
    assert wire.cluster.partitions[OutputPartition("t", 0)].end == _ALL


async def test_a_notebook_reads_too(wire: _Wire) -> None:
    """It runs all it does in an event loop."""
    assert _read(Reader(kafka=_KAFKA), {0: (0, _ALL)}) == {0: _values(0, 0, _ALL)}
    assert wire.leader("t", 0) == 0


class _InRacks(_Wire):
    """Brokers of Kafka 2.4 and later: the leader of partition 0 names node 1 to rack `b`."""

    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__(cluster)
        self.read: list[int] = []
        self.lacks: set[int] = set()  # replicas that do not have the records
        self.is_down = False

    async def _answer(self, node: int, request: Any) -> Any:
        if not isinstance(request, FetchRequest):
            return await super()._answer(node, request)
        if node == 1 and self.is_down:
            raise RetriableError("the connection broke")
        found: list[Any] = []
        for number, offset, _ in request.topics[0][1]:
            self.read.append(node)
            partition, leader = self.cluster.partitions[OutputPartition("t", number)], number
            _, code, high, stable, _, data = self._fetched(leader, "t", number, offset)
            is_named = node == leader == 0 and request._rack_id == "b"
            if is_named or node in self.lacks:
                code, data = (0, b"") if is_named else (_OUT_OF_RANGE, b"")
            replica = 1 if is_named else -1
            found.append((number, code, high, stable, partition.start, [], replica, data))
        return SimpleNamespace(API_VERSION=11, topics=[("t", found)])


@pytest.mark.promise("order-rack")
@pytest.mark.parametrize("fails", ["", "it lacks records", "it is down"])
def test_the_replica_of_this_machines_rack_is_read(
    wire: _Wire, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """The leader is asked where that replica fails, before rows count as lost; and for ends.

    For a minute: then the leader names a replica again.
    """
    brokers = _InRacks(wire.cluster)
    monkeypatch.setattr(connections, "Wire", lambda *_args, **_options: brokers)
    reader = Reader(kafka=_KAFKA)
    assert _read(reader, {0: (0, _ALL)}) == {0: _values(0, 0, _ALL)}
    assert set(brokers.read) == {0}
    monkeypatch.setenv(RACK, "b")
    brokers.read.clear()
    assert _read(reader, {0: (0, _ALL)}) == {0: _values(0, 0, _ALL)}
    assert brokers.read == [0, *[1] * (len(brokers.read) - 1)]
    brokers.read.clear()
    assert reader.stable_ends({SourcePartition("t", 0): 0}) == {SourcePartition("t", 0): _ALL}
    assert brokers.read == [0]
    if fails == "it is down":
        brokers.is_down = True
    elif fails:
        brokers.lacks.add(1)
    assert _read(reader, {0: (0, _ALL)}) == {0: _values(0, 0, _ALL)}
    assert brokers.read[-1] == (0 if fails else 1)
    brokers.is_down = False
    brokers.lacks.clear()
    brokers.read.clear()
    assert _read(reader, {0: (0, _ALL)}) == {0: _values(0, 0, _ALL)}
    assert set(brokers.read) == {0 if fails else 1}
    (kept,) = connections._kept.values()
    replicas = kept.leaders._replicas
    replicas |= {where: (node, 0.0) for where, (node, _until_s) in replicas.items()}
    brokers.read.clear()
    assert _read(reader, {0: (0, _ALL)}) == {0: _values(0, 0, _ALL)}
    assert brokers.read == [0, *[1] * (len(brokers.read) - 1)]
    wire.cluster.partitions[OutputPartition("t", 0)].start = 6
    with pytest.raises(LogRangeError, match="begins at offset 6, and not at 2"):
        list(reader.rows({SourcePartition("t", 0): (2, 10)}))


class _Hanging(_Wire):
    """A leader that takes requests and answers none; the others answer."""

    def __init__(self, cluster: FakeCluster, node: int) -> None:
        super().__init__(cluster)
        self.node = node

    async def ask(self, node: int, request: Any) -> Any:
        if node == self.node:
            await asyncio.sleep(3_600)
        return await super().ask(node, request)


@pytest.mark.promise("order-broker-hangs")
@pytest.mark.parametrize("rows", [0, _ALL])
def test_a_leader_that_hangs_is_waited_for_no_longer_than_patience_goes(
    wire: _Wire, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Whatever the others send meanwhile, and however long a request may take by itself."""
    hanging = _Hanging(wire.cluster, node=0)
    monkeypatch.setattr(connections, "Wire", lambda *_args, **_options: hanging)
    reader = Reader(kafka=_KAFKA, patience_s=0.3)
    begun_s = time.monotonic()
    with pytest.raises(UnansweredError, match="not all of t-0 is read"):
        _read(reader, {0: (0, _ALL), 1: (0, rows), 2: (0, rows)})
    assert time.monotonic() - begun_s < 20
    wanted = {SourcePartition("t", one): (0, _ALL if one == 0 else rows) for one in range(3)}
    came: list[Any] = []
    reached: dict[SourcePartition, int] = {}
    with pytest.raises(UnansweredError, match="not all of t-0 is read"):
        came.extend(reader.columns(wanted, 1 << 20, reached))
    assert {where.partition for where, _ in came} == ({1, 2} if rows else set())
    assert sum(len(columns) for _, columns in came) == sum(reached.values())
    assert _read(reader, {1: (0, _ALL)}) == {1: _values(1, 0, _ALL)}
    with pytest.raises(UnansweredError):
        reader.stable_ends({SourcePartition("t", 0): 0})


@pytest.mark.promise("order-broker-hangs")
@pytest.mark.parametrize("what", ["start", "refresh"])
def test_so_is_a_broker_that_hangs_before_it_says_who_leads(
    wire: _Wire, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    async def hang(*_arguments: Any) -> None:
        await asyncio.sleep(3_600)

    monkeypatch.setattr(wire, what, hang)
    with pytest.raises(UnansweredError, match="no broker answers"):
        _read(Reader(kafka=_KAFKA, patience_s=0.3), {0: (0, _ALL)})


@pytest.mark.promise("order-broker-hangs")
def test_whoever_is_to_stop_waits_for_no_leader(
    wire: _Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = _Hanging(wire.cluster, node=0)
    monkeypatch.setattr(connections, "Wire", lambda *_args, **_options: hanging)
    stop = threading.Event()
    threading.Timer(0.1, stop.set).start()
    with pytest.raises(UnansweredError, match="the job is to stop"):
        _read(Reader(kafka=_KAFKA, patience_s=600, is_stopping=stop.is_set), {0: (0, _ALL)})


@pytest.mark.usefixtures("wire")
def test_the_time_that_rows_are_at_work_is_no_silence() -> None:
    found = 0
    for _ in Reader(kafka=_KAFKA, patience_s=0.9).rows({SourcePartition("t", 0): (0, _ALL)}):
        found += 1
        if found == _ROWS:
            time.sleep(1.0)
    assert found == _ALL


class _Counting(_Wire):
    """Sends of each partition what it is asked for, in whole batches, as a broker does."""

    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__(cluster)
        self.sent_bytes = self.asked = 0

    async def _answer(self, node: int, request: Any) -> Any:
        if not isinstance(request, FetchRequest):
            return await super()._answer(node, request)
        self.asked += 1
        topics: list[Any] = []
        is_first = True
        for topic, some in request.topics:
            found: list[Any] = []
            for number, offset, most in some:
                where = self.cluster.partitions[OutputPartition(topic, number)]
                data, left = b"", most
                for one in (one for one in where.batches if one.end > offset):
                    if len(one.raw) > left and not (is_first and not data):
                        data += one.raw[:left]  # which is thrown away
                        break
                    data += one.offset.to_bytes(8, "big") + one.raw[8:]
                    left -= len(one.raw)
                is_first &= not data
                self.sent_bytes += len(data)
                found.append((number, 0, where.shown, where.shown, [], data))
            topics.append((topic, found))
        return SimpleNamespace(API_VERSION=4, topics=topics)


@pytest.fixture
def counting(wire: _Wire, monkeypatch: pytest.MonkeyPatch) -> _Counting:
    """Twenty partitions of one leader, each with 300 KiB in batches of 3 KiB."""
    wire.cluster.partitions.clear()
    for number in range(20):
        model = PartitionModel(leader=0)
        for batch in range(100):
            builder = new_builder(1 << 16)
            for row in range(3):
                assert builder.append(row, 1_000 + row, None, b"x" * 1_000, []) is not None
            model.append(stamped(seal(builder, "none"), Stamp(number, 0, 3 * batch)), 0)
        model.replicate()
        wire.cluster.partitions[OutputPartition("t", number)] = model
    counting = _Counting(wire.cluster)
    monkeypatch.setattr(connections, "Wire", lambda *_args, **_options: counting)
    return counting


@pytest.mark.promise("order-small-batches")
@pytest.mark.parametrize(("each", "keeps", "most"), [
    (30, False, 1.5), (30, True, 1.15), (3, False, 3.0), (3, True, 1.7)
])  # fmt: skip
def test_small_ranges_of_a_large_backlog_are_fetched_alone(
    counting: _Counting, each: int, most: float, *, keeps: bool
) -> None:
    """What is behind them would be fetched again for the next ones, unless it is kept."""
    reader = Reader(kafka=_KAFKA, behind={} if keeps else None)
    found: dict[int, list[int]] = {one: [] for one in range(20)}
    for first in range(0, 300, each):
        spans = {SourcePartition("t", one): (first, first + each) for one in range(20)}
        for where, columns in reader.columns(spans, 32 << 20):
            found[where.partition] += columns.offsets.tolist()
    assert all(offsets == [*range(300)] for offsets in found.values())
    all_bytes = 20 * 100 * len(counting.cluster.partitions[OutputPartition("t", 0)].batches[0].raw)
    assert all_bytes < counting.sent_bytes < most * all_bytes
    assert counting.asked <= 300 // each * (0.6 if keeps and each == 3 else 1)


@pytest.mark.promise("order-small-batches")
def test_what_is_kept_is_let_go_of_where_the_next_range_begins_elsewhere(
    wire: _Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind lost rows. A partition without a range keeps what it has."""
    reader = Reader(kafka=_KAFKA, behind={})
    where, other = SourcePartition("t", 0), SourcePartition("t", 1)

    def read(spans: dict[SourcePartition, tuple[int, int]]) -> list[bytes | None]:
        return [value for _, some in reader.columns(spans) for value in some.values.each()]

    assert read({where: (0, 2), other: (0, 2)}) == [*_values(0, 0, 2), *_values(1, 0, 2)]
    assert reader.behind is not None
    assert {one.where: (one.offset, one.next_offset) for one in reader.behind.values()} == {
        where: (2, _ROWS),
        other: (2, _ROWS),
    }
    asked: list[Any] = []
    wire.before = [lambda: asked.append(None)] * 9
    assert read({where: (2, 3), other: (2, 2)}) == _values(0, 2, 3)
    assert not asked
    assert read({where: (2, 5)}) == _values(0, 2, 5)
    assert len(asked) == 2
    assert {*reader.behind} == {where, other}
    monkeypatch.setattr(kafka_reader, "_BEHIND_BYTES", 0)
    assert read({where: (6, 7), other: (2, 3)}) == [*_values(1, 2, 3), *_values(0, 6, 7)]
    assert not reader.behind


def test_a_fetch_of_well_packed_batches_is_unpacked_in_pieces(
    counting: _Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 MiB of a fetch may hold gigabytes of zeros. What is behind a piece stays packed."""
    model = PartitionModel(leader=0)
    for number in range(40):
        builder = new_builder(1 << 21)
        assert builder.append(0, 1_000, None, bytes(1 << 20), []) is not None
        model.append(stamped(seal(builder, "zstd"), Stamp(0, 0, number)), 0)
    model.replicate()
    counting.cluster.partitions[OutputPartition("t", 0)] = model
    unpacked: list[int] = []
    unpack = stored_batches.unpacked_records

    def noting(*batch: Any) -> Any:
        found = unpack(*batch)
        unpacked.append(len(found))
        return found

    monkeypatch.setattr(stored_batches, "unpacked_records", noting)
    rows: list[int] = []
    for _, columns in Reader(kafka=_KAFKA).columns({SourcePartition("t", 0): (0, 40)}):
        rows.append(len(columns))
        assert len(unpacked) == sum(rows)
    assert counting.asked == 1
    assert rows == [16, 16, 8]
    assert max(unpacked) < 1.01 * (1 << 20)


def test_batches_that_are_larger_than_those_before_are_read_soon(counting: _Counting) -> None:
    """A leader sends a batch of one partition whatever its size; the others are asked for more."""
    reader = Reader(kafka=_KAFKA, packed={"t": (1.0, 10)})
    spans = {SourcePartition("t", one): (0, 30) for one in range(20)}
    assert sum(len(columns) for _, columns in reader.columns(spans)) == 20 * 30
    assert counting.asked < 20


@pytest.mark.parametrize(("partition_bytes", "most"), [(16 << 10, 32 << 10), (1 << 20, 300_000)])
def test_answers_are_gathered_up_to_the_size_of_one(
    counting: _Counting, partition_bytes: int, most: int
) -> None:
    """`sequitur measure` reads hundreds of partitions side by side, and keeps a piece of each."""
    reader = Reader(kafka=_KAFKA, partition_bytes=partition_bytes)
    counting.sent_bytes = 0
    came = reader.columns({SourcePartition("t", 0): (0, 300)})
    sizes = [next(came)[1].size_bytes]
    assert counting.sent_bytes < 1.1 * most
    sizes.extend(columns.size_bytes for _, columns in came)
    assert sum(sizes) == 300 * 1_000
    assert most / 2 < max(sizes) <= most
