"""Plans of steps, and how many of a step's rows a partition has by what its leader says."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from sequitur.base.stored import dump, load
from sequitur.errors import CheckpointError, FencedError, OutputMismatchError, OwnershipError
from sequitur.kafka import connections
from sequitur.kafka.identity import Identity
from sequitur.kafka.partition import OutputPartition
from sequitur.kafka.producer_ids import ProducerState, Untold
from sequitur.kafka.record_format import MAX_SEQUENCE
from sequitur.kafka.settings import KafkaSettings
from sequitur.pipelines.sink.step_planner import StepPlanner
from sequitur.pipelines.sink.step_plans import (
    SequenceEnds,
    StepPlan,
    TopicPlan,
    rows_ahead,
    rows_behind,
    rows_there,
    rows_until,
)
from tests.support.document_folder import DocumentFolder
from tests.support.fake_cluster import FakeCluster, FakeWire
from tests.support.partition_model import PartitionModel

if TYPE_CHECKING:
    from collections.abc import Iterator

_WHERE = OutputPartition("out", 3)
_OURS = Identity(7, 5)
_KAFKA = KafkaSettings(bootstrap_servers="unused:1")
_PLAN = StepPlan(
    step=12,
    cluster="c",
    identity=_OURS,
    topics={
        "out": TopicPlan("ab12", (0, MAX_SEQUENCE), (0, 99), 1000),
        "late": TopicPlan(None, (), (), 1),
    },
)
_SENT = SequenceEnds("c", _OURS, {"out": ("ab12", (1, 2)), "late": (None, ())})


def test_a_plan_is_read_back_as_it_was_written() -> None:
    assert load(StepPlan, dump(_PLAN)) == _PLAN


def test_what_a_done_mark_says_is_read_back_as_it_was_written() -> None:
    assert load(SequenceEnds, dump(_SENT)) == _SENT


@pytest.mark.parametrize("of", [_PLAN, _SENT])
def test_another_format_is_refused(of: StepPlan | SequenceEnds) -> None:
    """A newer version may mean something else by it."""
    folder = DocumentFolder(documents={"found": {**dump(of), "format": 2}})
    with pytest.raises(CheckpointError, match=r"/found cannot be read: .*2, this version reads 1"):
        folder.read_document("found", partial(load, type(of)))


@pytest.mark.parametrize(
    ("last", "first", "rows"),
    [
        (9, 10, 0),
        (10, 10, 1),
        (29, 10, 20),
        (MAX_SEQUENCE, 0, 0),
        (MAX_SEQUENCE, MAX_SEQUENCE, 1),
        (0, MAX_SEQUENCE, 2),
        (4, MAX_SEQUENCE - 4, 10),
        (MAX_SEQUENCE // 2 - 1, 0, MAX_SEQUENCE // 2),
    ],
)
def test_rows_are_counted_from_the_first_sequence(last: int, first: int, rows: int) -> None:
    assert rows_until(_WHERE, last, first) == rows
    assert rows_there(_WHERE, ProducerState(5, last), _OURS, first) == rows


@pytest.mark.parametrize(("last", "first", "lost"), [(8, 10, 1), (0, 10, 9), (MAX_SEQUENCE, 2, 2)])
def test_lost_rows_of_earlier_steps_are_named(last: int, first: int, lost: int) -> None:
    with pytest.raises(OutputMismatchError, match=rf"in steps that are done \({lost} of them\)"):
        rows_until(_WHERE, last, first)


def test_a_newer_epoch_is_a_newer_life() -> None:
    with pytest.raises(FencedError, match="epoch 6, ours is 5"):
        rows_there(_WHERE, ProducerState(6, 3), _OURS, 0)


def test_an_older_epoch_has_none_of_a_first_step() -> None:
    assert rows_there(_WHERE, ProducerState(4, 99), _OURS, 0) == 0


def test_an_older_epoch_where_rows_should_be_has_lost_them() -> None:
    """An identity that has written does not give way to an older one."""
    with pytest.raises(OutputMismatchError, match="all of them"):
        rows_there(_WHERE, ProducerState(4, 99), _OURS, 1)


def test_a_forgotten_producer_leaves_it_to_the_log() -> None:
    assert rows_there(_WHERE, Untold.NOTHING, _OURS, 5) is None


def test_a_topic_that_may_not_be_read_is_named() -> None:
    with pytest.raises(OutputMismatchError, match="READ"):
        rows_there(_WHERE, Untold.NOT_ALLOWED, _OURS, 0)


@pytest.mark.parametrize(
    ("told", "following", "expected"),
    [
        (Untold.NOTHING, 5, False),
        (Untold.NOT_ALLOWED, 5, False),
        (ProducerState(5, 4), 5, False),
        (ProducerState(5, 5), 5, True),
        (ProducerState(5, 3), 5, False),
        (ProducerState(5, MAX_SEQUENCE), 0, False),
        (ProducerState(5, 0), MAX_SEQUENCE, True),
        (ProducerState(4, 99), 5, False),
        (ProducerState(6, 0), 5, True),
    ],
)
def test_rows_ahead_are_those_behind_what_comes_next(
    told: ProducerState | Untold, following: int, expected: bool
) -> None:
    assert rows_ahead(told, _OURS, following) is expected


@pytest.mark.promise("order-brokers-lose-rows")
@pytest.mark.parametrize(
    ("told", "following", "expected"),
    [
        (Untold.NOTHING, 5, 0),
        (ProducerState(5, 4), 5, 0),
        (ProducerState(5, 5), 5, 0),
        (ProducerState(5, 2), 5, 2),
        (ProducerState(5, MAX_SEQUENCE), 3, 3),
        (ProducerState(5, MAX_SEQUENCE), 0, 0),
        (ProducerState(4, 99), 5, 5),
        (ProducerState(4, 99), 0, 0),
        (ProducerState(6, 0), 5, 0),
    ],
)
def test_rows_behind_are_those_that_a_leader_has_lost(
    told: ProducerState | Untold, following: int, expected: int
) -> None:
    """It has fewer of the epoch, or an older epoch where the newest has written."""
    assert rows_behind(told, _OURS, following) == expected


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """Topics `out` and `late`, of a partition each; the next life gets the epoch behind `_OURS`."""
    partitions = {OutputPartition(name, 0): PartitionModel() for name in ("out", "late")}
    found = FakeCluster(partitions=partitions, epoch=_OURS.epoch, clock=time.monotonic)
    monkeypatch.setattr(connections, "Wire", lambda *_args, **_options: FakeWire(found))
    monkeypatch.setattr(connections, "_kept", {})
    yield found
    connections.close_own()


@pytest.mark.usefixtures("cluster")
def test_topics_that_a_new_life_has_not_written_begin_at_0_too() -> None:
    """Sequences belong to an epoch: a leader refuses one that goes on with those of another."""
    sent = SequenceEnds("cluster", _OURS, {"out": (None, (9,)), "late": (None, (4,))})
    plans = StepPlanner(_KAFKA, app="app", documents=DocumentFolder())
    plans.open({"out": 1, "late": 1}, newest=0, done=0, sent=sent)
    begun = plans.of_step(1, {"out": 1}).plan
    plans.written(1, {OutputPartition("out", 0): 2})
    following = plans.of_step(2, {"out": 1, "late": 1}).plan
    assert begun.identity == following.identity != _OURS
    assert begun.topics["out"].firsts == (0,)
    assert [following.topics[name].firsts for name in ("out", "late")] == [(2,), (0,)]


class _TakenOver(DocumentFolder):
    """A checkpoint that another process has taken over."""

    def check_owner(self) -> None:
        raise OwnershipError("another process has it")


@pytest.mark.usefixtures("cluster")
def test_no_plan_is_followed_once_another_process_has_the_checkpoint() -> None:
    """It may have planned the step, and deleted that since: the step is long done."""
    plans = StepPlanner(_KAFKA, app="app", documents=_TakenOver())
    plans.open({"out": 1}, newest=-1, done=-1, sent=None)
    with pytest.raises(OwnershipError):
        plans.of_step(0, {"out": 1})
