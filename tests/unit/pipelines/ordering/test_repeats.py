"""Repeats of an event; on Spark tests/spark/test_late_rows.py shows that they are dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sequitur.consumer.reorder.step_log import StepKind
from tests.support.deaths import DOCUMENTS, check_repeats_stay, of_event, times_of
from tests.support.events import T0, Event, event

if TYPE_CHECKING:
    from tests.support.list_job import ListJob


def _frontier_at(job: ListJob, time_ms: int) -> None:
    job.produce([event(T0 + time_ms + 1000, key="other", partition=p) for p in range(4)])
    assert job.run().frontier_ms == T0 + time_ms


@pytest.mark.promise("order-producer-sends-event")
def test_repeats_are_dropped_wherever_their_original_is(job: ListJob) -> None:
    """In the same batch, held from an earlier one, at the frontier, behind it: one of each."""
    job = job.with_settings(duplicates="event-id")
    job.produce([of_event("p:0", 4000, 0), of_event("p:0", 4000, 1), of_event("p:1", 4500, 0)])
    _frontier_at(job, 4000)
    assert times_of(job.released(), "k") == [4000]
    job.produce([of_event("p:0", 4000, 2), of_event("p:1", 4500, 3), of_event("p:2", 4500, 3)])
    _frontier_at(job, 5000)
    assert times_of(job.released(), "k") == [4000, 4500, 4500]
    # Not older than the last of its key: it would be rescued, were it not a repeat.
    job.produce([of_event("p:1", 4500, 2), of_event("p:3", 4500, 2), of_event("p:3", 4500, 2)])
    report = job.run(drain=True)
    assert times_of(job.released(), "k") == [4000, 4500, 4500, 4500]
    assert (report.totals.duplicates, report.totals.late) == (5, 0)
    assert report.totals.read == report.totals.released + report.totals.duplicates
    assert job.late() == []


def test_repeats_are_kept_unless_that_is_asked_for(job: ListJob) -> None:
    """By default ids are not looked at: topics of our own producer hold no repeats."""
    job.produce([of_event("p:0", 4000, 0), of_event("p:0", 4000, 1)])
    report = job.run(drain=True)
    assert (report.totals.released, report.totals.duplicates) == (2, 0)


@pytest.mark.parametrize("duplicates", ["header:ce_id", "json:ce_id"])
def test_repeats_of_another_producer_are_known_by_its_id(job: ListJob, duplicates: str) -> None:
    """Where it stands is a setting; rows without it are nobody's repeats."""
    job = job.with_settings(duplicates=duplicates)
    given = [of_event("x", 1, 0, "ce_id"), of_event("x", 1, 1, "ce_id")]
    if duplicates.startswith("json"):
        value = b'{"at":%d,"ce_id":"x"}' % (T0 + 1)
        given = [Event(value=value, key=b"k", partition=number) for number in (0, 1)]
    job.produce([*given, of_event("x", 2, 0), of_event("x", 2, 1)])
    report = job.run(drain=True)
    assert sorted(times_of(job.released(), "k")) == [1, 2, 2]
    assert report.totals.duplicates == 1


def test_repeat_that_a_tick_releases_is_dropped(job: ListJob) -> None:
    job = job.anew(duplicates="event-id", idle_timeout="500 ms", available_now=False)
    job.produce([of_event("p:0", 1, 0), of_event("p:0", 1, 1)])
    job.run()
    for _ in range(3):
        job.tester.advance(1)
    assert job.kinds()[-1] is StepKind.TICK
    totals = job.tester.totals
    assert (totals.released, totals.duplicates, totals.held) == (1, 1, 0)


@pytest.mark.promise("order-producer-sends-event")
@pytest.mark.parametrize("place", DOCUMENTS)
def test_crash_makes_no_row_a_repeat_of_itself(job: ListJob, place: str) -> None:
    check_repeats_stay(job, place)


def test_repeat_in_latest_mode_is_dropped(job: ListJob) -> None:
    """A repeat stands later in the source than its original, and yet it is no newer state."""
    job = job.with_settings(mode="latest", duplicates="event-id")
    job.produce([of_event("p:0", 100, 0)])
    job.run()
    job.produce([of_event("p:0", 100, 0), of_event("p:1", 101, 0), of_event("p:1", 101, 0)])
    report = job.run()
    assert times_of(job.released(), "k") == [100, 101]
    assert (report.totals.duplicates, report.totals.late) == (2, 0)


@pytest.mark.promise("field-names-dots")
@pytest.mark.parametrize(
    ("duplicates", "has"),
    [
        ("json:event.id", True),
        ("json:/event.id", True),
        ("json:/event/id", False),
        ("json:id", False),
    ],
)
def test_an_id_that_no_row_has_is_told(job: ListJob, duplicates: str, has: bool) -> None:
    """With the fields that there are; else duplicates would be kept without a word."""
    job = job.with_settings(duplicates=duplicates)
    value = b'{"at":%d,"event.id":"x"}' % (T0 + 1)
    job.produce([Event(value=value, key=b"k", partition=number) for number in (0, 1)])
    report = job.run(drain=True)
    assert report.totals.duplicates == has
    told = [line for line in job.told if "duplicates" in line]
    assert len(told) == (not has)
    assert all("and they have the fields at, /event.id" in line for line in told)


def test_a_header_that_no_row_has_is_told(job: ListJob) -> None:
    job = job.with_settings(duplicates="header:ce_id")
    job.produce([of_event("x", 1, 0, "id")])
    job.run(drain=True)
    assert [line for line in job.told if "and they have the header id" in line]
