"""Plans of steps, and how many of a step's rows a partition has by what its leader says."""

from __future__ import annotations

import pytest

from sequitur.errors import FencedError, OutputMismatchError
from sequitur.kafka.identity import Identity
from sequitur.kafka.partition import OutputPartition
from sequitur.kafka.producer_ids import ProducerState, Untold
from sequitur.kafka.record_format import MAX_SEQUENCE
from sequitur.pipelines.sink.step_plans import (
    SequenceEnds,
    StepPlan,
    TopicPlan,
    rows_ahead,
    rows_behind,
    rows_there,
    rows_until,
)

_WHERE = OutputPartition("out", 3)
_OURS = Identity(7, 5)
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
    assert StepPlan.from_document(_PLAN.to_document()) == _PLAN


def test_what_a_done_mark_says_is_read_back_as_it_was_written() -> None:
    assert SequenceEnds.from_document(_SENT.to_document()) == _SENT


@pytest.mark.parametrize("of", [_PLAN, _SENT])
def test_another_format_is_refused(of: StepPlan | SequenceEnds) -> None:
    """A newer version may mean something else by it."""
    with pytest.raises(ValueError, match="format 2, this version reads 1"):
        type(of).from_document({**of.to_document(), "format": 2})


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
