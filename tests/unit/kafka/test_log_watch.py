"""Whoever waits for records hears of them at once, and asks again once a second."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import pytest
from aiokafka.protocol.fetch import FetchRequest

from sequitur.errors import LogRangeError, RetriableError, TopicError
from sequitur.kafka import connections, log_watch
from sequitur.kafka.log_watch import LogWatch
from sequitur.kafka.partition import OutputPartition, SourcePartition
from sequitur.kafka.record_batch import Stamp, new_builder, seal, stamped
from sequitur.kafka.settings import KafkaSettings
from tests.support.fake_cluster import NODES, FakeCluster, FakeWire
from tests.support.partition_model import PartitionModel
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

_KAFKA: Final = KafkaSettings(bootstrap_servers="unused:1")
_WHERE: Final = [SourcePartition("t", number) for number in range(NODES)]
_NOTHING_READ: Final = dict.fromkeys(_WHERE, 0)
_FORBIDDEN: Final = 29
_SHORT_S: Final = 0.05


class _Wire(FakeWire):
    """Keeps a request as a broker does: until there are records, or its time is over."""

    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__(cluster)
        self.asked: list[int] = []
        self.code = 0

    async def _answer(self, node: int, request: Any) -> Any:
        assert isinstance(request, FetchRequest)
        self.asked.append(node)
        until_s = time.monotonic() + request._max_wait_ms / 1000
        while time.monotonic() < until_s and not self._has_records(request):  # noqa: ASYNC110 - another thread writes
            await asyncio.sleep(0.001)
        request._max_wait_ms = 0
        return await super()._answer(node, request)

    def _has_records(self, request: Any) -> bool:
        return any(
            self.cluster.partitions[OutputPartition(topic, number)].end > offset
            for topic, some in request.topics
            for number, offset, _ in some
        )

    def _fetched(self, node: int, topic: str, number: int, offset: int) -> tuple[Any, ...]:
        found = super()._fetched(node, topic, number, offset)
        return (number, self.code, *found[2:-1], b"") if self.code else found


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> _Wire:
    """Three partitions without records, each with a leader of its own."""
    cluster = FakeCluster(clock=lambda: 0.0)
    for number in range(NODES):
        cluster.partitions[OutputPartition("t", number)] = PartitionModel(leader=number)
    wire = _Wire(cluster)
    monkeypatch.setattr(connections, "Wire", lambda *_args, **_options: wire)
    return wire


@pytest.fixture
def watch(wire: _Wire) -> Iterator[LogWatch]:
    assert wire.asked == []
    watch = LogWatch(_KAFKA)
    yield watch
    watch.close()


@pytest.fixture
def _kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers keep requests for longer than any test takes, however slow the machine is."""
    monkeypatch.setattr(log_watch, "_KEPT_MS", 10 * 60_000)
    monkeypatch.setattr(log_watch, "_SILENCE_S", 10 * 60.0)


def _write(wire: _Wire, number: int, rows: int = 2) -> None:
    model = wire.cluster.partitions[OutputPartition("t", number)]
    builder = new_builder(1 << 16)
    for row in range(rows):
        assert builder.append(row, 1_000, None, b"x", []) is not None
    model.append(stamped(seal(builder, "none"), Stamp(number, 0, model.end)), 0)
    model.replicate()


def test_ends_of_all_partitions_are_told(wire: _Wire, watch: LogWatch) -> None:
    _write(wire, 1)
    assert watch.ends(_NOTHING_READ) == {_WHERE[0]: 0, _WHERE[1]: 2, _WHERE[2]: 0}
    assert watch.ends({_WHERE[1]: 2}) == {_WHERE[1]: 2}


@pytest.mark.usefixtures("_kept")
def test_records_are_heard_of_while_other_leaders_have_none(wire: _Wire, watch: LogWatch) -> None:
    """They keep their requests, so that each is asked once however often others are."""
    for turn in range(1, 5):
        writing = threading.Timer(_SHORT_S, _write, (wire, 1))
        writing.start()
        places = {**_NOTHING_READ, _WHERE[1]: 2 * (turn - 1)}
        assert watch.later(places, PATIENCE_S) == {_WHERE[1]: 2 * turn}
        writing.join()
    assert (wire.asked.count(1), wire.asked.count(0)) == (4, 1)
    _write(wire, 0)
    assert watch.later({**_NOTHING_READ, _WHERE[1]: 8}, PATIENCE_S) == {_WHERE[0]: 2}


@pytest.mark.usefixtures("_kept")
def test_what_came_behind_a_first_record_is_told_with_it(
    wire: _Wire, watch: LogWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that was kept is answered at a first record, which may be a step ago."""
    monkeypatch.setattr(log_watch, "_SHORTLY_S", PATIENCE_S)
    assert watch.later(_NOTHING_READ, _SHORT_S) == {}
    _write(wire, 0)
    assert watch.later(_NOTHING_READ, PATIENCE_S)[_WHERE[0]] == 2
    for number in range(NODES):
        _write(wire, number)
    _write(wire, 1)
    places = {**_NOTHING_READ, _WHERE[0]: 2}
    answered = threading.Event()

    async def let_in() -> None:
        """The first record is heard of, and then there is another."""
        await asyncio.sleep(_SHORT_S)
        _write(wire, 2)
        answered.set()

    assert watch._connections is not None
    watch._connections.run(let_in())
    assert answered.is_set()
    assert watch.later(places, PATIENCE_S) == {_WHERE[0]: 4, _WHERE[1]: 4, _WHERE[2]: 4}


@pytest.mark.usefixtures("_kept")
def test_without_records_the_time_is_waited(wire: _Wire, watch: LogWatch) -> None:
    assert watch.later(_NOTHING_READ, _SHORT_S) == {}
    assert watch.later(_NOTHING_READ, _SHORT_S) == {}
    assert sorted(wire.asked) == [0, 1, 2]


def test_place_that_is_deleted_is_told_of(wire: _Wire, watch: LogWatch) -> None:
    _write(wire, 2)
    wire.cluster.partitions[OutputPartition("t", 2)].start = 1
    with pytest.raises(LogRangeError, match="partition 2 of 't' has no offset 0"):
        watch.ends(_NOTHING_READ)
    with pytest.raises(LogRangeError):
        watch.later(_NOTHING_READ, PATIENCE_S)


def test_partition_that_moves_is_asked_for_at_its_new_leader(
    wire: _Wire, watch: LogWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_watch, "_KEPT_MS", 50)
    assert watch.ends(_NOTHING_READ) == _NOTHING_READ
    _write(wire, 0)
    wire.cluster.move(OutputPartition("t", 0), 2)
    assert watch.later(_NOTHING_READ, PATIENCE_S) == {_WHERE[0]: 2}


def test_partition_without_a_leader_is_asked_for_once_it_has_one(
    wire: _Wire, watch: LogWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that was added, while the others have no records."""
    monkeypatch.setattr(log_watch, "_KEPT_MS", 50)
    assert watch.ends(_NOTHING_READ) == _NOTHING_READ
    added = SourcePartition("t", NODES)
    places = {**_NOTHING_READ, added: 0}
    assert watch.later(places, _SHORT_S) == {}
    wire.cluster.partitions[OutputPartition(*added)] = PartitionModel(leader=0)
    _write(wire, NODES)
    assert watch.later(places, PATIENCE_S) == {added: 2}


def test_who_may_not_read_is_told(wire: _Wire, watch: LogWatch) -> None:
    wire.code = _FORBIDDEN
    with pytest.raises(TopicError, match=r"cannot be read: .*TOPIC_AUTHORIZATION_FAILED"):
        watch.ends(_NOTHING_READ)


@pytest.mark.promise("order-broker-hangs")
def test_leader_that_does_not_answer_is_told_of(
    wire: _Wire, watch: LogWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_watch, "_SILENCE_S", 0.1)
    monkeypatch.setattr(log_watch, "_KEPT_MS", 1)
    wire.cluster.faults.dropped = 1.0
    with pytest.raises(RetriableError, match="no broker answers"):
        watch.ends(_NOTHING_READ)
    with pytest.raises(RetriableError, match="partition 0 of 't': no leader answers"):  # noqa: PT012
        while True:
            watch.later(_NOTHING_READ, _SHORT_S)


@pytest.mark.usefixtures("_kept")
def test_whoever_is_to_stop_waits_for_no_records(wire: _Wire) -> None:
    stop = threading.Event()
    watch = LogWatch(_KAFKA, is_stopping=stop.is_set)
    assert watch.ends(_NOTHING_READ) == _NOTHING_READ
    threading.Timer(_SHORT_S, stop.set).start()
    with pytest.raises(RetriableError, match="to stop"):
        watch.later(_NOTHING_READ, PATIENCE_S)
    watch.close()
    assert wire.asked.count(0) == 2
