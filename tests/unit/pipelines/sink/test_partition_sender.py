"""A partition's rows, sent by attempts at one step: histories against a model of a cluster."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.fetch import FetchRequest

from sequitur.errors import (
    FencedError,
    OutputMismatchError,
    SendRefusedError,
    SendUnansweredError,
    SinkError,
)
from sequitur.kafka.connection_check import translated
from sequitur.kafka.identity import Identity
from sequitur.kafka.leaders import Leaders
from sequitur.kafka.partition import OutputPartition
from sequitur.kafka.producer_ids import DescribeProducersRequest
from sequitur.kafka.record_batch import Stamp, idempotent_batch
from sequitur.kafka.record_format import MAX_SEQUENCE, following
from sequitur.pipelines.sink.partition_sender import Assignment, PartitionSender
from tests.support.attempt_histories import laid_out
from tests.support.fake_cluster import FakeCluster, FakeWire, Faults
from tests.support.partition_model import PartitionModel
from tests.support.virtual_time import VirtualTimeLoop

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Iterator

_WHERE = OutputPartition("out", 0)
_OURS = Identity(7, 5)
_ROWS = [b"%d" % number for number in range(12)]
_HOUR_S = 3600.0


class _Cluster:
    """One partition, and attempts at it."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._loop = loop
        self.log = PartitionModel()
        self.fake = FakeCluster(partitions={_WHERE: self.log}, clock=loop.time)
        self.wire = FakeWire(self.fake)
        self.first = 0
        self.gone: list[int] = []

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(work, 10 * _HOUR_S))

    def holds(
        self, begin: int, end: int, identity: Identity = _OURS, *, replicated: bool = True
    ) -> None:
        """The leader has these rows, as another attempt sent them, in one batch."""
        batch = laid_out(_ROWS[begin:end])
        stamp = Stamp(identity.producer_id, identity.epoch, following(self.first, begin))
        raw = idempotent_batch(batch.records, batch.rows, base_ms=0, max_ms=0, stamp=stamp)
        assert self.log.append(raw, self._loop.time())[0] == 0
        if replicated:
            self.fake.replicate(_WHERE)

    def sender(
        self,
        cuts: tuple[int, ...] = (5, 5, 2),
        *,
        begun_s: float | None = None,
        identity: Identity = _OURS,
        end: int = 0,
    ) -> PartitionSender:
        """An attempt that cuts the rows so; it asks first, if it is not told otherwise."""
        sender = PartitionSender(
            Leaders(self.wire),  # type: ignore[arg-type]  # stands for it
            Assignment(_WHERE, identity, self.first, end, begun_s),
            on_gone=self.gone.append,
            clock=self._loop.time,
        )
        begin = 0
        for count in cuts:
            sender.add(laid_out(_ROWS[begin : begin + count]))
            begin += count
        if cuts:
            sender.end()
        return sender

    async def replicating(self, sender: PartitionSender) -> int:
        """Run it while followers keep up."""
        await self.wire.refresh()
        running = asyncio.ensure_future(sender.run())
        while not running.done():
            await asyncio.sleep(0.01)
            self.fake.replicate(_WHERE)
        return running.result()

    def rows(self) -> list[bytes | None]:
        return self.log.rows()


@pytest.fixture
def cluster() -> Iterator[_Cluster]:
    loop = VirtualTimeLoop()
    asyncio.set_event_loop(loop)
    yield _Cluster(loop)
    loop.close()
    asyncio.set_event_loop(None)


def test_all_rows_go_out(cluster: _Cluster) -> None:
    """And whoever keeps count of bytes is told of each batch."""
    sender = cluster.sender()
    assert cluster.run(cluster.replicating(sender)) == len(_ROWS)
    assert cluster.rows() == _ROWS
    assert sender.waiting == 0
    begins = ((0, 5), (5, 10), (10, 12))
    assert cluster.gone == [len(laid_out(_ROWS[begin:end]).records) for begin, end in begins]


def test_an_attempt_does_not_end_before_its_rows_are_replicated(cluster: _Cluster) -> None:

    async def history() -> None:
        await cluster.wire.refresh()
        running = asyncio.ensure_future(cluster.sender((12,)).run())
        await asyncio.sleep(20)
        assert cluster.log.end == len(_ROWS)
        assert not running.done()
        cluster.fake.replicate(_WHERE)
        assert await running == len(_ROWS)

    cluster.run(history())


@pytest.mark.parametrize("begun_s", [None, _HOUR_S])
def test_the_first_batch_goes_alone(cluster: _Cluster, begun_s: float | None) -> None:
    """A leader without state takes any: a second that overtakes the first would leave a hole."""

    async def history() -> None:
        await cluster.wire.refresh()
        running = asyncio.ensure_future(cluster.sender((1,) * 12, begun_s=begun_s).run())
        await asyncio.sleep(5)
        assert cluster.log.end == 1
        cluster.fake.replicate(_WHERE)
        await asyncio.sleep(5)
        assert cluster.log.end == 6, "five in flight behind it"
        cluster.fake.move(_WHERE, kept=0)
        await asyncio.sleep(5)
        assert cluster.log.end == 2, "after an error the first goes alone again"
        running.cancel()

    cluster.run(history())


def test_rows_that_are_there_do_not_go_again(cluster: _Cluster) -> None:
    """However they were cut, what is behind them goes."""
    cluster.holds(0, 3)
    cluster.holds(3, 7)
    assert cluster.run(cluster.replicating(cluster.sender())) == len(_ROWS)
    assert cluster.rows() == _ROWS
    assert [len(one.rows) for one in cluster.log.batches] == [3, 4, 3, 2]


@pytest.mark.promise("order-broker-forgotten-job")
@pytest.mark.parametrize("there", [5, 7, 12])
def test_rows_that_a_forgetful_leader_has_do_not_go_again(cluster: _Cluster, there: int) -> None:
    """A day later no broker knows the producer: it would take the last batch once more."""
    cluster.holds(0, there)
    cluster.log.forget(_HOUR_S, 0)
    assert cluster.run(cluster.replicating(cluster.sender())) == len(_ROWS)
    assert cluster.rows() == _ROWS


@pytest.mark.promise("order-broker-describe-producers")
@pytest.mark.parametrize("there", [0, 7, 12])
@pytest.mark.parametrize("code", [35, None])
def test_log_tells_where_a_broker_does_not_describe_producers(
    cluster: _Cluster, monkeypatch: pytest.MonkeyPatch, code: int | None, there: int
) -> None:
    """It says that it does not know the request, or does not list it among those that it knows."""
    if there:
        cluster.holds(0, there)
    ask = FakeWire.ask

    async def without(wire: FakeWire, node: int, request: Any) -> Any:
        if not isinstance(request, DescribeProducersRequest):
            return await ask(wire, node, request)
        if code is None:
            raise translated(IncompatibleBrokerVersion("DescribeProducersRequest"))
        return SimpleNamespace(topics=[("out", [(0, code, "", [], {})], {})])

    monkeypatch.setattr(FakeWire, "ask", without)
    assert cluster.run(cluster.replicating(cluster.sender())) == len(_ROWS)
    assert cluster.rows() == _ROWS


def test_rows_of_others_do_not_hide_ours(cluster: _Cluster) -> None:
    """Where the last batch is another producer's, the log is read from the step's beginning."""
    cluster.holds(0, 7)
    cluster.holds(0, 1, Identity(8, 0))
    cluster.log.forget(_HOUR_S, 0)
    assert cluster.run(cluster.replicating(cluster.sender())) == len(_ROWS)
    assert cluster.rows() == [*_ROWS[:7], _ROWS[0], *_ROWS[7:]]


def test_what_only_the_leader_has_does_not_count(cluster: _Cluster) -> None:
    """It is asked, and then another leads, without what it said: a row behind would be a hole."""
    cluster.holds(0, 12, replicated=False)

    async def history() -> int:
        await cluster.wire.refresh()
        running = asyncio.ensure_future(cluster.sender().run())
        await asyncio.sleep(5)
        assert not running.done()
        cluster.fake.move(_WHERE, kept=0)
        await cluster.wire.refresh()  # as another partition's sender does
        while not running.done():
            await asyncio.sleep(0.01)
            cluster.fake.replicate(_WHERE)
        return running.result()

    assert cluster.run(history()) == len(_ROWS)
    assert cluster.rows() == _ROWS


def test_a_new_leader_that_knows_less_is_waited_for(cluster: _Cluster) -> None:
    """It has all rows, and learns late that they are replicated; of the producer it knows none."""
    cluster.holds(0, 5)
    cluster.holds(5, 12)
    cluster.log.forget(_HOUR_S, 0)
    cluster.log.move(1, 0, shown=5)

    async def history() -> int:
        await cluster.wire.refresh()
        running = asyncio.ensure_future(cluster.sender().run())
        await asyncio.sleep(20)
        assert cluster.log.end == len(_ROWS)
        cluster.fake.replicate(_WHERE)
        return await running

    assert cluster.run(history()) == len(_ROWS)
    assert cluster.rows() == _ROWS


def test_a_leader_that_knows_less_when_it_is_read_is_waited_for(
    cluster: _Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It led, another did, and it does again between two questions: it shows less than before."""
    cluster.holds(0, 5)
    cluster.holds(5, 12)
    cluster.holds(0, 1, Identity(8, 0))
    cluster.log.forget(_HOUR_S, 0)
    ask, fetched = FakeWire.ask, []

    async def later(wire: FakeWire, node: int, request: Any) -> Any:
        if isinstance(request, FetchRequest):
            fetched.append(request)
            if len(fetched) == 2:
                cluster.log.shown = 5
        return await ask(wire, node, request)

    monkeypatch.setattr(FakeWire, "ask", later)

    async def history() -> int:
        await cluster.wire.refresh()
        running = asyncio.ensure_future(cluster.sender().run())
        await asyncio.sleep(20)
        assert cluster.log.end == len(_ROWS) + 1
        cluster.fake.replicate(_WHERE)
        return await running

    assert cluster.run(history()) == len(_ROWS)
    assert cluster.rows() == [*_ROWS, _ROWS[0]]


@pytest.mark.parametrize("is_connected", [False, True])
def test_what_was_learnt_over_an_hour_ago_is_asked_again(
    cluster: _Cluster, *, is_connected: bool
) -> None:
    """A fresh attempt is paused; another has sent all, and brokers have forgotten since."""

    async def history() -> int:
        if is_connected:  # by a connection that is there all the time
            await cluster.wire.refresh()
            await cluster.wire.connect(cluster.log.leader)
        sender = cluster.sender(begun_s=asyncio.get_running_loop().time())
        await asyncio.sleep(_HOUR_S + 1)
        cluster.holds(0, 12)
        cluster.log.forget(asyncio.get_running_loop().time(), 0)
        return await cluster.replicating(sender)

    assert cluster.run(history()) == len(_ROWS)
    assert cluster.rows() == _ROWS


@pytest.mark.promise("order-broker-restarts-records")
@pytest.mark.parametrize("is_elsewhere", [False, True])
@pytest.mark.parametrize("is_begun", [False, True])
def test_what_was_learnt_before_a_broker_restarted_is_asked_again(
    cluster: _Cluster, *, is_begun: bool, is_elsewhere: bool
) -> None:
    """All is deleted, and its leader knows no producer then: it would take any sequence.

    Others in the process connect again, or learn that another leads, while the attempt is paused.
    """

    async def history() -> None:
        await cluster.wire.refresh()
        await cluster.wire.connect(0)
        await cluster.wire.connect(1)
        now_s = asyncio.get_running_loop().time()
        sender = cluster.sender((), begun_s=now_s)
        running = asyncio.ensure_future(sender.run()) if is_begun else None
        if is_begun:
            sender.add(laid_out(_ROWS[:5]))
            await asyncio.sleep(1)
            cluster.fake.replicate(_WHERE)
            await asyncio.sleep(1)
            assert cluster.log.end == 5
        cluster.holds(5 if is_begun else 0, 12)
        cluster.log.delete_to(12)
        cluster.log.restart()
        if is_elsewhere and is_begun:
            cluster.fake.move(_WHERE, 0)
        else:
            cluster.wire.disconnect()
        await cluster.wire.refresh()
        await cluster.wire.connect(cluster.log.leader)
        sender.add(laid_out(_ROWS[5:] if is_begun else _ROWS))
        sender.end()
        await (running or sender.run())

    with pytest.raises(OutputMismatchError, match="forgotten who wrote"):
        cluster.run(history())
    assert cluster.log.end == 12


def test_a_batch_whose_answer_is_lost_is_there_once(cluster: _Cluster) -> None:
    """Also if it arrives when the next attempt is at work already."""
    cluster.fake.faults = Faults(no_answer=0.3, late=0.5, late_s=3)
    for _ in range(3):
        assert cluster.run(cluster.replicating(cluster.sender((1,) * 12))) == len(_ROWS)
    assert cluster.rows() == _ROWS


@pytest.mark.parametrize("first", [MAX_SEQUENCE, MAX_SEQUENCE - 1, MAX_SEQUENCE - 6])
def test_sequences_begin_anew_at_2_to_the_31(cluster: _Cluster, first: int) -> None:
    """Between two batches, and within one; for whoever asks, too."""
    cluster.first = first
    cluster.holds(0, 3)
    assert cluster.run(cluster.replicating(cluster.sender())) == len(_ROWS)
    assert cluster.run(cluster.replicating(cluster.sender((12,)))) == len(_ROWS)
    assert cluster.rows() == _ROWS


def test_what_retention_has_taken_of_the_step_is_there(cluster: _Cluster) -> None:
    """As long as the leader knows the producer, or its last batch is in the log."""
    cluster.holds(0, 5)
    cluster.holds(5, 7)
    cluster.log.delete_to(7)
    assert cluster.run(cluster.replicating(cluster.sender())) == len(_ROWS)
    cluster.log.delete_to(11)
    cluster.log.forget(_HOUR_S * 9, 0)
    assert cluster.run(cluster.replicating(cluster.sender())) == len(_ROWS)
    assert cluster.rows() == _ROWS


def test_a_log_without_the_step_under_a_forgetful_leader_is_refused(cluster: _Cluster) -> None:
    cluster.holds(0, 7)
    cluster.log.delete_to(7)
    cluster.log.forget(_HOUR_S, 0)
    with pytest.raises(OutputMismatchError, match="forgotten who wrote"):
        cluster.run(cluster.replicating(cluster.sender()))
    assert cluster.log.end == 7


def test_a_log_that_ends_before_the_step_is_refused(cluster: _Cluster) -> None:
    with pytest.raises(OutputMismatchError, match="up to 0, and not 9"):
        cluster.run(cluster.replicating(cluster.sender(end=9)))


def test_lost_rows_of_earlier_steps_are_refused(cluster: _Cluster) -> None:
    cluster.holds(0, 3)
    cluster.first = 5
    for begun_s in (None, _HOUR_S):
        with pytest.raises(OutputMismatchError, match="had acknowledged, in steps that are done"):
            cluster.run(cluster.replicating(cluster.sender(begun_s=begun_s)))
    assert cluster.log.end == 3


def test_a_leader_that_was_deposed_is_not_believed_at_once(cluster: _Cluster) -> None:
    """It answers as if it led, and lacks what its successor has: soon that one is asked."""
    cluster.holds(0, 3)
    cluster.first = 5
    sender = cluster.sender()

    async def deposed_for_a_second() -> int:
        sending = asyncio.ensure_future(cluster.replicating(sender))
        await asyncio.sleep(1)
        cluster.first = 0
        cluster.holds(3, 5)
        return await sending

    assert cluster.run(deposed_for_a_second()) == len(_ROWS)
    assert cluster.rows() == [*_ROWS[:5], *_ROWS]


def test_more_rows_than_the_step_has_are_refused(cluster: _Cluster) -> None:
    """Another checkpoint's, or those of a later step."""
    cluster.holds(0, 12)
    with pytest.raises(OutputMismatchError, match="holds 12 rows of the step, and it has 7"):
        cluster.run(cluster.replicating(cluster.sender((5, 2))))


@pytest.mark.parametrize("begun_s", [None, _HOUR_S])
def test_a_newer_life_is_told_so(cluster: _Cluster, begun_s: float | None) -> None:
    """By the answer to a batch, or by what the leader says."""
    cluster.holds(0, 1, Identity(7, 6))
    with pytest.raises(FencedError, match="newer process"):
        cluster.run(cluster.replicating(cluster.sender(begun_s=begun_s)))
    assert cluster.log.end == 1


def test_a_newer_identity_begins_at_0(cluster: _Cluster) -> None:
    """What the older one still sends is refused."""
    cluster.holds(0, 12)
    newer = cluster.sender(identity=Identity(7, 6), end=12)
    assert cluster.run(cluster.replicating(newer)) == len(_ROWS)
    assert cluster.rows() == [*_ROWS, *_ROWS]
    with pytest.raises(FencedError):
        cluster.run(cluster.replicating(cluster.sender()))


@pytest.mark.parametrize(
    ("code", "error"), [(87, SendRefusedError), (10, SendRefusedError), (29, SinkError)]
)
def test_a_row_that_is_refused_keeps_its_sequence(
    cluster: _Cluster, code: int, error: type[Exception]
) -> None:
    """The step waits by name; once the topic takes the row, it goes out under that sequence."""
    cluster.holds(0, 5)
    cluster.fake.refusal = code
    with pytest.raises(error):
        cluster.run(cluster.replicating(cluster.sender()))
    cluster.fake.refusal = None
    assert cluster.run(cluster.replicating(cluster.sender())) == len(_ROWS)
    assert cluster.rows() == _ROWS


def test_rows_of_the_step_that_are_lost_go_again(cluster: _Cluster) -> None:
    """This attempt had their answers; the next one finds what is left, and sends the rest."""

    async def history() -> int:
        await cluster.wire.refresh()
        running = asyncio.ensure_future(cluster.sender((5, 2, 5)).run())
        await asyncio.sleep(1)
        cluster.fake.replicate(_WHERE)
        await asyncio.sleep(1)
        cluster.log.lose(0)
        cluster.fake.move(_WHERE, 0)
        with pytest.raises(SendUnansweredError, match="has lost rows"):
            await running
        return await cluster.replicating(cluster.sender())

    assert cluster.run(history()) == len(_ROWS)
    assert cluster.rows() == _ROWS


@pytest.mark.promise("order-output-topic-deleted")
def test_a_topic_that_is_deleted_in_the_middle_is_not_waited_for(cluster: _Cluster) -> None:
    """Not that it is away for a moment: a broker that starts may know nothing yet."""

    async def history(away_s: float) -> int:
        await cluster.wire.refresh()
        cluster.fake.is_deleted = True
        loop = asyncio.get_running_loop()
        loop.call_later(away_s, setattr, cluster.fake, "is_deleted", False)
        return await cluster.replicating(cluster.sender())

    assert cluster.run(history(5.0)) == len(_ROWS)
    with pytest.raises(OutputMismatchError, match="was deleted while the job ran"):
        cluster.run(history(60.0))


@pytest.mark.promise("order-output-topic-deleted")
def test_brokers_that_are_gone_do_not_say_that_a_topic_is_deleted(
    cluster: _Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that had just started did not list it, and then none answers for a minute."""

    async def history() -> int:
        await cluster.wire.refresh()
        cluster.fake.is_deleted = True
        told = cluster.wire.refresh
        looks = 0

        async def once(topics: Iterable[str] = ()) -> bool:
            nonlocal looks
            looks += 1
            await told(topics)
            return looks <= 2  # the first one is not of the sender

        monkeypatch.setattr(cluster.wire, "refresh", once)

        def come_back() -> None:
            monkeypatch.setattr(cluster.wire, "refresh", told)
            cluster.fake.is_deleted = False

        asyncio.get_running_loop().call_later(60.0, come_back)
        return await cluster.replicating(cluster.sender())

    assert cluster.run(history()) == len(_ROWS)


def test_brokers_that_do_not_answer_are_waited_for_not_for_ever(cluster: _Cluster) -> None:
    """The task ends, and its next attempt goes on."""
    cluster.fake.faults = Faults(dropped=1)
    with pytest.raises(SendUnansweredError):
        cluster.run(cluster.replicating(cluster.sender()))
