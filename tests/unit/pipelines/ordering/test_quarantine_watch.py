"""A job that quarantines what it reads says so while it runs, and at its end."""

from __future__ import annotations

import pytest

from sequitur.consumer.reorder import parse_event_time_spec
from sequitur.consumer.reorder.advice import UnusableRow
from sequitur.consumer.reorder.reasons import MISSING
from sequitur.consumer.reorder.step_log import Totals
from sequitur.pipelines.ordering.quarantine_watch import QuarantineWatch

_SECONDS = "event-time-likely-seconds"
_HAVE = "event_time = 'json:at', and they have the field when"


class _Watched:
    """A watch, and all that it tells, with a clock that stands still."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.told: list[str] = []
        self.looks = 0
        event_time = parse_event_time_spec("json:at")
        self.watch = QuarantineWatch(event_time, self.told.append, lambda: self.now_s)

    def step(self, read: int, *, skipped: int = 0, **quarantined: int) -> None:
        reasons = {name.replace("_", "-"): rows for name, rows in quarantined.items()}
        staged = Totals(read=read, quarantined=reasons, skipped=skipped)
        self.watch.step_is_done(staged, self._some)

    def _some(self, _reason: str) -> list[UnusableRow]:
        self.looks += 1
        return [UnusableRow(b'{"when": 5}', ())]


@pytest.mark.promise("order-event-time-names")
def test_a_reason_with_more_than_a_tenth_is_told_once_a_minute() -> None:
    """At once, then of what came since; and no rows are looked at for what is not told."""
    job = _Watched()
    job.step(100, event_time_missing=10)
    assert (job.told, job.looks) == ([], 0)
    job.step(100, event_time_missing=11)
    told = f"warning: 21 of 200 rows were quarantined, {MISSING}: {_HAVE}"
    assert (job.told, job.looks) == ([told], 1)
    job.now_s += 59.9
    job.step(100, event_time_missing=100)
    assert len(job.told) == 1
    job.now_s += 0.1
    job.step(50, event_time_missing=6)
    assert job.told[1:] == [f"warning: 6 of 50 rows were quarantined, {MISSING}: {_HAVE}"]
    job.now_s += 60
    job.step(1_000, event_time_missing=100)
    assert len(job.told) == 2
    assert job.watch.verdict == ""


@pytest.mark.promise("order-event-time-names")
def test_a_run_of_which_all_is_quarantined_says_so() -> None:
    """Rows that the subscription skipped count on neither side."""
    job = _Watched()
    assert job.watch.verdict == ""
    job.step(30, skipped=5, event_time_missing=25)
    job.step(0)
    assert job.watch.verdict == f"all 25 rows of this run were quarantined, {MISSING}: {_HAVE}"
    job.step(15, event_time_likely_seconds=15)
    assert job.watch.verdict == (
        f"all 40 rows of this run were quarantined, 25 of them {MISSING}: {_HAVE}"
    )
    job.step(1)
    assert job.watch.verdict == ""


def test_seconds_for_milliseconds_are_answered_with_the_setting() -> None:
    """What to write instead stands in the line."""
    job = _Watched()
    job.step(3, event_time_likely_seconds=3)
    says = f'{_SECONDS}: write `as s`: event_time = "json:at as s"'
    assert job.told == [f"warning: 3 of 3 rows were quarantined, {says}"]
