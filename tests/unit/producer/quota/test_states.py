"""What a producer knows of backlogs, after any records at any times."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.errors import ControlRecordError
from sequitur.kafka.control import BacklogState, ProducerPolicy, key_of
from sequitur.producer.quota import KnownBacklogs

_POLICIES: list[ProducerPolicy | None] = [None, "producer_request_hold", "producer_exception"]


def _state(policy: ProducerPolicy | None = "producer_request_hold", **given: Any) -> BacklogState:
    return BacklogState(**({"issued_ms": 0, "valid_for_ms": 10, "policy": policy} | given))


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.none()
            | st.builds(
                _state,
                st.sampled_from(_POLICIES),
                issued_ms=st.integers(0, 2),
                valid_for_ms=st.integers(0, 20),
            ),
            st.integers(0, 10),
        )
    ),
    st.integers(0, 30),
)
def test_of_each_topic_the_last_record_counts(
    records: list[tuple[str, BacklogState | None, int]], later_ms: int
) -> None:
    """For its time from its first arrival on, and only where it has a policy."""
    states, now_ms = KnownBacklogs(), 0
    last: dict[str, tuple[BacklogState, int]] = {}
    for topic, state, pause_ms in records:
        now_ms += pause_ms
        states.take(key_of(topic), None if state is None else state.encode(), now_ms)
        if state is None:
            last.pop(topic, None)
        elif topic not in last or last[topic][0] != state:
            last[topic] = state, now_ms
    now_ms += later_ms
    states.expire(now_ms)
    assert states.limited == {
        topic: state
        for topic, (state, arrived_ms) in last.items()
        if state.policy is not None and now_ms <= arrived_ms + state.valid_for_ms
    }


@pytest.mark.promise("in-whoever-checks-quotas")
@pytest.mark.parametrize("ahead_ms", [0, 29_000, 31_000, -3_600_000, 3_600_000])
def test_clocks_that_differ_change_nothing(ahead_ms: int) -> None:
    """The checker's is so far from the producer's; a clock that is never set counts."""
    states, started_ms = KnownBacklogs(), 7_000
    state = _state(issued_ms=3_600_000 + ahead_ms, valid_for_ms=30_000)
    states.take(key_of("t"), state.encode(), started_ms)
    states.expire(started_ms + 30_000)
    assert list(states.limited) == ["t"]
    states.expire(started_ms + 30_001)
    assert not states.limited


@pytest.mark.promise("in-whoever-checks-quotas")
def test_a_state_that_is_read_again_counts_no_longer() -> None:
    """From the beginning of the log, whose checker has died; one that is issued anew does."""
    states = KnownBacklogs()
    for now_ms, is_limited in ((0, True), (10, True), (11, False), (12, False)):
        states.take(key_of("t"), _state().encode(), now_ms)
        assert bool(states.limited) is is_limited
    states.take(key_of("t"), _state(issued_ms=1).encode(), 12)
    assert states.limited


def test_a_bad_record_leaves_the_one_before() -> None:
    """Until it is stale; and records of other kinds are passed over."""
    states = KnownBacklogs()
    states.take(key_of("t"), _state().encode(), 0)
    with pytest.raises(ControlRecordError, match="topic 't'"):
        states.take(key_of("t"), b"{", 1)
    states.take(b'["subscription","t"]', b"{", 1)
    assert list(states.limited) == ["t"]
    states.expire(10)
    assert list(states.limited) == ["t"]
    states.expire(11)
    assert not states.limited


def test_all_is_forgotten_with_the_topic() -> None:
    """What limits, and what only tells of a proximity."""
    states = KnownBacklogs()
    states.take(key_of("t"), _state(backlog_bytes=9, limit_bytes=10).encode(), 0)
    states.forget()
    assert not states.limited
    assert states.proximity(["t"]) is None


def test_proximity_is_shown_from_half_on() -> None:
    """The largest of the topics asked for, whatever its policy."""
    states = KnownBacklogs()
    for topic, backlog_bytes in (("a", 49), ("b", 50), ("c", 130)):
        state = _state(None, backlog_bytes=backlog_bytes, limit_bytes=100)
        states.take(key_of(topic), state.encode(), 0)
    assert states.proximity([]) is None
    assert states.proximity(["a", "unknown"]) is None
    assert states.proximity(["a", "b"]) == 0.5
    assert states.proximity("abc") == 1.3
    states.expire(11)
    assert states.proximity("abc") is None


def test_a_lifted_quota_is_forgotten() -> None:
    """The state that limits is at hand until then, with its figures; then nothing is shown."""
    states, state = KnownBacklogs(), _state(backlog_bytes=9, limit_bytes=10)
    states.take(key_of("t"), state.encode(), 0)
    assert states.limited == {"t": state}
    assert states.proximity(["t"]) == 0.9
    states.take(key_of("t"), None, 1)
    assert states.limited == {}
    assert states.proximity(["t"]) is None
    states.take(key_of("t"), state.encode(), 9)
    states.expire(19)
    assert states.limited == {"t": state}  # it counts from its new arrival on
