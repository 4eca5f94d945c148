"""The learned delay against a plain count of the rows, and over random histories."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.base.stored import dump, load
from sequitur.consumer.reorder.clock import EventClock
from sequitur.consumer.reorder.learned_delay import (
    LAST_BIN,
    LATENESS_LIMIT_MS,
    DelayPolicy,
    LatenessHistogram,
    LearnedDelays,
    StepLateness,
    bin_limit_ms,
    lateness_bin,
)
from sequitur.kafka.partition import SourcePartition

_PARTITIONS = [SourcePartition("readings", number) for number in range(3)]
_lateness = st.integers(-1000, 200_000)
_policies = st.builds(
    DelayPolicy,
    late_target=st.sampled_from([0.001, 0.01, 0.1, 0.5]),
    min_ms=st.integers(0, 1000),
    max_ms=st.integers(1000, 100_000),
    half_life_ms=st.integers(1, 100_000),
)
_steps = st.lists(
    st.tuples(
        st.sampled_from(_PARTITIONS),
        st.integers(-500, 20_000),  # how far its event time moves
        st.lists(_lateness, max_size=8),
        st.booleans(),
    ),
    max_size=25,
)


def _step(lateness: list[int]) -> StepLateness:
    bins = Counter(lateness_bin(ms) for ms in lateness if ms > 0)
    return StepLateness(rows=len(lateness), behind=dict(bins))


@given(st.integers(1, LATENESS_LIMIT_MS))
def test_a_bin_holds_what_is_up_to_its_limit(lateness_ms: int) -> None:
    """The limit of a row's bin covers the row, and exceeds it by 9 % and a millisecond at most."""
    number = lateness_bin(lateness_ms)
    assert 1 <= number <= LAST_BIN
    assert lateness_ms <= bin_limit_ms(number) <= lateness_ms * 1.0906 + 1
    assert number == 1 or bin_limit_ms(number - 1) <= lateness_ms


@given(st.lists(_lateness, min_size=1, max_size=200), _policies)
def test_the_promise_holds_for_the_rows_learned_from(
    lateness: list[int], policy: DelayPolicy
) -> None:
    """Of the rows that a delay can help, no more than the target are later than the one learned."""
    learned = LatenessHistogram().learn(
        _step(lateness), reached_ms=0, half_life_ms=policy.half_life_ms, is_backlog=False
    )
    delay_ms = learned.delay_ms(policy)
    assert policy.min_ms <= delay_ms <= policy.max_ms
    helped = [ms for ms in lateness if ms <= policy.max_ms]
    assert sum(ms > delay_ms for ms in helped) <= policy.late_target * len(lateness)
    # And none that is shorter by more than a bin would do.
    shorter_ms = int(delay_ms / 1.0906 / 1.0906) - 2
    if shorter_ms >= policy.min_ms:
        over = sum(ms > shorter_ms for ms in lateness if ms <= policy.max_ms * 1.0906 + 1)
        assert over > policy.late_target * len(lateness)


@pytest.mark.promise("order-events-take-longer")
@given(_steps, _policies)
def test_whatever_is_learned_the_frontier_never_moves_back(
    steps: list[tuple[SourcePartition, int, list[int], bool]], policy: DelayPolicy
) -> None:
    """Delays that grow and shrink leave the frontier where it was, or move it on."""
    clock, learned = EventClock(), LearnedDelays()
    reached = dict.fromkeys(_PARTITIONS, 1_000_000)
    for partition, moved_ms, lateness, is_backlog in steps:
        reached[partition] = max(reached[partition], reached[partition] + moved_ms)
        learned = learned.learn(
            partition,
            _step(lateness),
            reached_ms=reached[partition],
            half_life_ms=policy.half_life_ms,
            is_backlog=is_backlog,
        )
        clock = clock.observe(
            partition,
            max_event_time_ms=reached[partition],
            position=0,
            high_watermark=1,
            now_ms=0,
        )
        before_ms = clock.frontier_ms
        delays = learned.delays_ms(clock.partitions, policy)
        clock = clock.advance(now_ms=0, delay_ms=delays, idle_timeout_ms=1)
        assert all(policy.min_ms <= delay <= policy.max_ms for delay in delays.values())
        assert before_ms <= clock.frontier_ms <= clock.max_event_time_ms


@given(_steps, _policies)
def test_what_was_learned_survives_json(
    steps: list[tuple[SourcePartition, int, list[int], bool]], policy: DelayPolicy
) -> None:
    """A restart goes on with the same delays: the log holds all that they come from."""
    learned = LearnedDelays()
    for partition, reached_ms, lateness, is_backlog in steps:
        learned = learned.learn(
            partition,
            _step(lateness),
            reached_ms=max(0, reached_ms),
            half_life_ms=policy.half_life_ms,
            is_backlog=is_backlog,
        )
    document = json.loads(json.dumps(dump(learned)))
    assert learned == load(LearnedDelays, document)
    # At most one weight for each bin, however long the history.
    for histogram in learned.partitions.values():
        assert len(histogram.behind) <= LAST_BIN
