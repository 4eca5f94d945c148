"""Which jobs get on: by their frontiers, and a clock that is never set."""

from __future__ import annotations

import pytest

from sequitur.consumer.subscription.backlog import PATIENCE_S, FrontierWatch

_NOBODY = frozenset[str]()
_JOB = frozenset({"job"})


@pytest.mark.promise("sub-topic-quota-holds")
def test_a_frontier_stands_still_once_it_has_for_long() -> None:
    """Though there is something to read; then it moves again."""
    watch = FrontierWatch()
    for now_s, frontier_ms, expected in (
        (0, 7, _NOBODY),
        (PATIENCE_S, 7, _NOBODY),
        (PATIENCE_S + 1, 7, _JOB),
        (PATIENCE_S + 2, 8, _NOBODY),
        (2 * PATIENCE_S + 2, 8, _NOBODY),
        (2 * PATIENCE_S + 3, 8, _JOB),
    ):
        assert watch.standing({"job": frontier_ms}, _NOBODY, now_s) == expected


@pytest.mark.promise("sub-topic-quota-holds")
def test_a_job_that_waits_for_events_does_not_stand_still() -> None:
    """Held producers would wait for it, and it for them. Its time begins with what is to read."""
    watch = FrontierWatch()
    assert not watch.standing({"job": 7}, _NOBODY, 0)
    assert not watch.standing({"job": 7}, _JOB, 10 * PATIENCE_S)
    assert not watch.standing({"job": 7}, _NOBODY, 11 * PATIENCE_S)
    assert watch.standing({"job": 7}, _NOBODY, 11 * PATIENCE_S + 1) == _JOB


def test_a_subscription_that_is_gone_is_forgotten() -> None:
    watch = FrontierWatch()
    watch.standing({"job": 7, "other": 1}, _NOBODY, 0)
    watch.standing({"other": 1}, _NOBODY, 1)
    assert watch.standing({"job": 7, "other": 1}, _NOBODY, PATIENCE_S + 1) == {"other"}
