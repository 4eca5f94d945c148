"""Rows of steps through a model of a cluster: attempts that die, live on, double; new drivers."""

from __future__ import annotations

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from sequitur.kafka.record_format import MAX_SEQUENCE
from tests.support.attempt_histories import History, Run
from tests.support.examples import examples
from tests.support.fake_cluster import Faults
from tests.support.values import replace

_RARE = st.sampled_from([0.0, 0.02, 0.1, 0.3])
_ROWS = st.integers(1, 3).flatmap(
    lambda partitions: st.lists(
        st.tuples(*(st.integers(0, 25) for _ in range(partitions))).filter(any),
        min_size=1,
        max_size=4,
    ).map(tuple)
)
_FAULTS = st.builds(
    Faults,
    no_answer=_RARE,
    dropped=_RARE,
    late=st.sampled_from([0.0, 0.5, 1.0]),
    paused=st.sampled_from([0.0, 0.0, 0.01, 0.05]),
    stale=_RARE,
)
_HISTORIES = st.builds(
    History,
    seed=st.integers(0, 2**32),
    rows=_ROWS,
    attempts=st.integers(1, 4),
    faults=_FAULTS,
    moves=_RARE,
    idle=st.sampled_from([0.0, 0.0, 0.01, 0.05]),
    deaths=_RARE,
    takeovers=_RARE,
    first=st.sampled_from([0, 0, MAX_SEQUENCE, MAX_SEQUENCE - 7]),
    replicas_lag=st.sampled_from([0.0, 0.5, 0.9]),
)


def _trimmed(history: History, trims: float) -> History:
    return replace(history, trims=trims)


_PAUSED = st.builds(
    History,
    seed=st.integers(0, 2**32),
    rows=st.lists(st.tuples(st.integers(1, 6)), min_size=1, max_size=3).map(tuple),
    attempts=st.just(4),
    faults=st.just(Faults(no_answer=0.05, late=0.5, paused=0.25)),
    idle=st.just(0.15),
    takeovers=st.sampled_from([0.0, 0.05]),
    moves=st.sampled_from([0.0, 0.05]),
    replicas_lag=st.just(0.3),
)


def _go(history: History) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        run = Run(history, patch)
        try:
            run.go()
        finally:
            note("\n".join(run.cluster.log[-300:]))
    return run


@pytest.mark.promise("order-answers-brokers-lost")
@settings(max_examples=examples(0.4))
@given(_HISTORIES)
def test_each_row_of_each_step_is_there_once_and_in_order(history: History) -> None:
    """Whatever attempts and drivers do, and brokers that do not lose what they acknowledged."""
    run = _go(history)
    assert run.refused is None
    for partition in range(len(history.rows[0])):
        assert run.expected(partition) == run.seen(partition)


@settings(max_examples=examples(0.2))
@given(st.builds(_trimmed, _HISTORIES, st.sampled_from([0.02, 0.1, 0.3])))
def test_where_nobody_knows_what_was_there_the_step_is_refused(history: History) -> None:
    """Retention takes rows of a step, and brokers forget who wrote them: nothing goes out twice."""
    run = _go(history)
    assert run.refused is None or "the brokers have forgotten who wrote there" in run.refused
    for partition, seen in enumerate(map(run.seen, range(len(history.rows[0])))):
        every = range(len(history.rows))
        assert [row for step in every for row in run.rows_of(step, partition)][: len(seen)] == seen
        assert len(seen) >= len(run.expected(partition))


@settings(max_examples=examples(1))
@given(_PAUSED)
def test_attempts_outlive_what_brokers_remember(history: History) -> None:
    """They are paused for hours, and go on when their producer is forgotten."""
    run = _go(history)
    assert run.refused is None
    assert run.expected(0) == run.seen(0)
