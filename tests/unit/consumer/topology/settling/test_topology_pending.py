"""Which events wait, for how long, and which of them run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.consumer.topology import FailReason
from sequitur.consumer.topology.settling.outcomes import (
    EventOutcome,
    RetryPolicy,
    held_back,
    next_due_ms,
    runs_now,
    settle,
)

_POLICY = RetryPolicy(delay_ms=100, factor=2, maximum_ms=1_000, jitter=0, max_attempts=3)
_DONE, _RETRY, _HELD, _DEAD = EventOutcome


def _longs(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def _flags(*places: int, of: int) -> Any:
    made = np.zeros(of, np.bool_)
    made[list(places)] = True
    return made


def _settled(
    keys: Any, failed: Any, *, attempts: Any = None, held: tuple[int, ...] = (), **options: Any
) -> tuple[list[EventOutcome], list[int], list[int]]:
    attempts = np.ones(len(keys), np.int64) if attempts is None else attempts
    settlement = settle(
        keys,
        attempts,
        dict.fromkeys(failed, FailReason.FAILED),
        held,
        now_ms=1_000,
        policy=options.pop("policy", _POLICY),
        random=0.5,
        shared=[np.array(several, np.intp) for several in options.pop("shared", ())],
        **options,
    )
    outcomes = [EventOutcome(one) for one in settlement.outcomes.tolist()]
    # Of those that run again, the number of the attempt that comes next.
    following = [
        tried + (outcome in {_RETRY, _HELD})
        for tried, outcome in zip(settlement.attempts.tolist(), outcomes, strict=True)
    ]
    return outcomes, following, settlement.retry_at_ms.tolist()


@pytest.mark.parametrize(("attempt", "expected_ms"), [
    (1, 1_100), (2, 1_200), (3, 1_400), (4, 1_800), (5, 2_000), (1_000_000, 2_000),
])  # fmt: skip
def test_the_delay_grows_up_to_its_maximum(attempt: int, expected_ms: int) -> None:
    assert _POLICY.retry_at_ms(attempt, 1_000, 0.0) == expected_ms


@given(
    attempt=st.integers(1, 10**6), random=st.floats(0, 1, exclude_max=True), jitter=st.floats(0, 1)
)
def test_the_jitter_is_a_share_either_way(attempt: int, random: float, jitter: float) -> None:
    """No delay is outside of it, and none is negative."""
    delays = [RetryPolicy(jitter=share).retry_at_ms(attempt, 0, random) for share in (jitter, 0)]
    assert delays[1] * (1 - jitter) - 1 <= delays[0] <= delays[1] * (1 + jitter) + 1
    assert delays[0] >= 0


def test_the_last_attempt_is_the_last() -> None:
    """There is none behind it; what kills its process is given up at once."""
    given_up = [_POLICY.gives_up(attempt, FailReason.FAILED) for attempt in (1, 2, 3, 4)]
    assert given_up == [False, False, True, True]
    assert _POLICY.gives_up(1, FailReason.CRASH)


def test_a_failed_event_waits_longer_each_time_and_is_dead_at_last() -> None:
    outcomes, attempts, retry_at_ms = _settled(
        _longs(-1, -1, -1), (0, 1, 2), attempts=_longs(1, 2, 3)
    )
    assert outcomes == [_RETRY, _RETRY, _DEAD]
    assert attempts == [2, 3, 3]
    assert retry_at_ms == [1_100, 1_200, 0]


def test_later_events_of_the_key_are_held() -> None:
    """Not earlier ones, not those of other keys, and not those without a key."""
    outcomes, attempts, retry_at_ms = _settled(_longs(7, 7, 8, 7, -1), (1,))
    assert outcomes == [_DONE, _RETRY, _DONE, _HELD, _DONE]
    assert (attempts[3], retry_at_ms[3]) == (1, 0)


def test_a_dead_event_holds_nobody() -> None:
    """The later ones of its key are done."""
    outcomes, _, _ = _settled(_longs(7, 7), (0,), attempts=_longs(3, 1))
    assert outcomes == [_DEAD, _DONE]


def test_without_order_nobody_is_held_for_a_key() -> None:
    """Only what failed runs again."""
    outcomes, _, _ = _settled(_longs(7, 7), (0,), keeps_order=False)
    assert outcomes == [_RETRY, _DONE]


def test_who_was_passed_over_stays_held() -> None:
    """Whatever is known of others; that was no attempt."""
    outcomes, attempts, _ = _settled(_longs(7, -1), (), held=(0, 1))
    assert (outcomes, attempts) == ([_HELD, _HELD], [1, 1])


@pytest.mark.promise("process-several-events-share")
def test_who_shares_an_output_runs_with_the_last_of_them() -> None:
    """A join is given both sides again; whoever is behind one of them in its key, not before."""
    outcomes, _, retry_at_ms = _settled(
        _longs(1, 2, 2, 3), (0,), attempts=_longs(2, 1, 1, 1), shared=[(0, 1)]
    )
    assert outcomes == [_RETRY, _HELD, _HELD, _DONE]
    assert retry_at_ms == [1_200, 1_200, 1_200, 0]


@pytest.mark.promise("process-events-share-outputs")
def test_sharing_goes_from_one_to_the_next() -> None:
    """By outputs and by keys; a failed one is put off with the others."""
    outcomes, _, retry_at_ms = _settled(
        _longs(1, 2, 2, 3, 4),
        (0, 4),
        attempts=_longs(1, 1, 1, 1, 2),
        shared=[(0, 1), (2, 3), (3, 4)],
    )
    assert outcomes == [_RETRY, _HELD, _HELD, _HELD, _RETRY]
    assert retry_at_ms == [1_100, 1_100, 1_200, 1_200, 1_200]


def test_what_shares_an_output_with_a_dead_event_runs_again_at_once() -> None:
    """Without it: the output may come out otherwise then."""
    outcomes, _, retry_at_ms = _settled(_longs(1, 2), (0,), attempts=_longs(3, 1), shared=[(0, 1)])
    assert (outcomes, retry_at_ms) == ([_DEAD, _HELD], [0, 0])


def test_nothing_ran_and_nothing_is_settled() -> None:
    assert _settled(_longs(), ()) == ([], [], [])
    assert runs_now(_longs(), _longs(), 0, policy=_POLICY).tolist() == []


def test_what_is_due_runs_unless_its_key_waits() -> None:
    """In their order: an event that waits on blocks those behind it, not those before."""
    keys = _longs(7, 7, 7, 8, -1, -1)
    times = _longs(0, 2_000, 0, 1_000, 2_000, 0)
    runs = runs_now(keys, times, 1_000, policy=_POLICY)
    assert runs.tolist() == [True, False, False, True, False, True]
    assert runs_now(keys, times, 2_000, policy=_POLICY).all()


def test_without_order_what_is_due_runs() -> None:
    runs = runs_now(_longs(7, 7), _longs(2_000, 0), 1_000, policy=_POLICY, keeps_order=False)
    assert runs.tolist() == [False, True]


@pytest.mark.promise("process-events-key-wait")
def test_the_first_of_a_key_says_when_it_is_due() -> None:
    """The others wait for it; those without a key wait for nobody."""
    assert next_due_ms(_longs(7, 7, 8), _longs(60_000, 1_000, 30_000)) == 30_000
    assert next_due_ms(_longs(7, 7), _longs(60_000, 1_000), keeps_order=False) == 1_000
    assert next_due_ms(_longs(-1, -1), _longs(60_000, 0)) == 0
    assert next_due_ms(_longs(), _longs()) is None


@pytest.mark.promise("process-events-share-outputs")
def test_a_long_chain_of_shared_outputs_is_settled_in_no_time() -> None:
    """Each event shares an output with the next: the test's limit is far from what is quadratic."""
    count = 50_000
    pairs = [(place, place + 1) for place in range(count - 1)]
    outcomes, _, retry_at_ms = _settled(
        _longs(*(place // 2 for place in range(count))), (count - 1,), shared=pairs
    )
    assert outcomes == [_HELD] * (count - 1) + [_RETRY]
    assert set(retry_at_ms) == {1_100}


_EVENTS = st.lists(
    st.tuples(st.integers(-1, 3), st.sampled_from("..fh"), st.integers(1, 3)), max_size=12
)


def _held_one_by_one(
    events: list[tuple[int, str, int]], shared: list[tuple[int, ...]], *, keeps_order: bool
) -> list[bool]:
    """The rule as it is told: held for an earlier one of its key, or one that shares an output."""
    failed = [state == "f" for _, state, _ in events]
    gone = [is_failed and event[2] == 3 for is_failed, event in zip(failed, events, strict=True)]
    waits = [state == "h" for _, state, _ in events]
    while True:
        before = list(waits)
        for place, (key, _, _) in enumerate(events):
            blocked = (
                keeps_order
                and key >= 0
                and any(
                    events[earlier][0] == key
                    and ((failed[earlier] and not gone[earlier]) or waits[earlier])
                    for earlier in range(place)
                )
            )
            spoilt = any(
                place in several and any(failed[one] or waits[one] for one in several)
                for several in shared
            )
            waits[place] = waits[place] or ((blocked or spoilt) and not failed[place])
        if waits == before:
            return waits


@pytest.mark.promise("process-event-fails-later")
@given(events=_EVENTS, data=st.data(), keeps_order=st.booleans())
def test_columns_settle_as_one_would_by_hand(
    events: list[tuple[int, str, int]], data: st.DataObject, *, keeps_order: bool
) -> None:
    """Who is held; and nobody runs before one whom it waits for."""
    places = st.integers(0, max(len(events) - 1, 0))
    several = st.lists(places, min_size=2, max_size=3, unique=True).map(tuple)
    is_shared = len(events) > 2
    shared: list[tuple[int, ...]] = data.draw(st.lists(several, max_size=3)) if is_shared else []
    expected = _held_one_by_one(events, shared, keeps_order=keeps_order)
    keys = _longs(*(key for key, _, _ in events))
    failed = [place for place, event in enumerate(events) if event[1] == "f"]
    outcomes, _, retry_at_ms = _settled(
        keys,
        failed,
        attempts=_longs(*(attempt for _, _, attempt in events)),
        held=tuple(place for place, event in enumerate(events) if event[1] == "h"),
        shared=shared,
        keeps_order=keeps_order,
    )
    assert [outcome is _HELD for outcome in outcomes] == expected
    waiting = [place for place, outcome in enumerate(outcomes) if outcome in {_RETRY, _HELD}]
    for together in shared:
        assert len({retry_at_ms[place] for place in together if place in waiting}) <= 1


def test_held_back_leaves_alone_what_is_unfinished_anyway() -> None:
    held = held_back(_longs(1, 1, 1), _flags(0, 1, of=3), _flags(of=3))
    assert held.tolist() == [False, False, True]
