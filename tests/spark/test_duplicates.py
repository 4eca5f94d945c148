"""Repeats of an event, known by a header: one goes out, the others are dropped and counted."""

from __future__ import annotations

import pytest

from sequitur.producer import EVENT_ID_HEADER
from tests.spark.conftest import Job, wait_until
from tests.support.events import Event, event, time_of

pytestmark = pytest.mark.spark

T0 = 1_700_000_000_000


def _event(event_id: str, time_ms: int, partition: int, header: str = EVENT_ID_HEADER) -> Event:
    value = b'{"at":%d}' % (T0 + time_ms)
    return Event(value=value, key=b"k", partition=partition, headers=[(header, event_id.encode())])


def _released(job: Job) -> list[int]:
    return [time_of(record) - T0 for record in job.released() if record.key == b"k"]


def _frontier_at(job: Job, time_ms: int) -> None:
    job.produce([event(T0 + time_ms + 1000, key="other", partition=p) for p in range(4)])
    assert job.run().frontier_ms == T0 + time_ms


@pytest.mark.promise("order-producer-sends-event")
def test_repeats_are_dropped_wherever_their_original_is(job: Job) -> None:
    """In the same batch, held from an earlier one, at the frontier, behind it: one of each."""
    job = job.with_settings(duplicates="event-id")
    job.produce([_event("p:0", 4000, 0), _event("p:0", 4000, 1), _event("p:1", 4500, 0)])
    _frontier_at(job, 4000)
    assert _released(job) == [4000]
    job.produce([_event("p:0", 4000, 2), _event("p:1", 4500, 3), _event("p:2", 4500, 3)])
    _frontier_at(job, 5000)
    assert _released(job) == [4000, 4500, 4500]
    # Not older than the last of its key: it would be rescued, were it not a repeat.
    job.produce([_event("p:1", 4500, 2), _event("p:3", 4500, 2), _event("p:3", 4500, 2)])
    report = job.run(drain=True)
    assert _released(job) == [4000, 4500, 4500, 4500]
    assert (report.totals.duplicates, report.totals.late) == (5, 0)
    assert report.totals.read == report.totals.released + report.totals.duplicates
    assert job.late() == []


def test_repeats_are_kept_unless_that_is_asked_for(job: Job) -> None:
    """By default ids are not looked at: topics of our own producer hold no repeats."""
    job.produce([_event("p:0", 4000, 0), _event("p:0", 4000, 1)])
    report = job.run(drain=True)
    assert (report.totals.released, report.totals.duplicates) == (2, 0)


@pytest.mark.parametrize("duplicates", ["header:ce_id", "json:ce_id"])
def test_repeats_of_another_producer_are_known_by_its_id(job: Job, duplicates: str) -> None:
    """Where it stands is a setting; rows without it are nobody's repeats."""
    job = job.with_settings(duplicates=duplicates)
    given = [_event("x", 1, 0, "ce_id"), _event("x", 1, 1, "ce_id")]
    if duplicates.startswith("json"):
        value = b'{"at":%d,"ce_id":"x"}' % (T0 + 1)
        given = [Event(value=value, key=b"k", partition=number) for number in (0, 1)]
    job.produce([*given, _event("x", 2, 0), _event("x", 2, 1)])
    report = job.run(drain=True)
    assert sorted(_released(job)) == [1, 2, 2]
    assert report.totals.duplicates == 1


def test_repeat_that_a_tick_releases_is_dropped(job: Job) -> None:
    """Steps without new rows look for repeats, too."""
    job = job.with_settings(duplicates="event-id", idle_timeout="500 ms")
    job.produce([_event("p:0", 1, 0), _event("p:0", 1, 1)])
    with job.running():
        wait_until(lambda: any(done.totals.released for _, done in job.steps))
    assert job.report is not None
    assert (job.report.totals.released, job.report.totals.duplicates) == (1, 1)
    assert job.report.totals.held == 0


@pytest.mark.promise("order-producer-sends-event")
@pytest.mark.parametrize(
    "place",
    [
        "sequitur.pipelines.ordering.duplicates.DuplicateFinder.find",
        "sequitur.pipelines.store.checkpoint.Checkpoint.write_entry",
        "sequitur.pipelines.sink.sink.TopicSink.write",
        "sequitur.pipelines.store.checkpoint.Checkpoint.write_done",
    ],
)
def test_crash_makes_no_row_a_repeat_of_itself(
    job: Job, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """A step that is carried out again drops the same rows, also if the setting has changed."""
    job = job.with_settings(duplicates="event-id")
    job.produce([_event("p:0", 100, 0), _event("p:0", 100, 1), _event("p:1", 200, 1)])
    _frontier_at(job, 300)
    job.produce([_event("p:1", 200, 2), _event("p:2", 250, 2), _event("p:2", 250, 2)])
    with monkeypatch.context() as patched:

        def crash(*_: object, **__: object) -> None:
            raise ZeroDivisionError

        patched.setattr(place, crash)
        with pytest.raises(ZeroDivisionError):
            job.run()
    logged = "TopicSink" in place or "write_done" in place
    report = (job.with_settings(duplicates="keep") if logged else job).run(drain=True)
    assert _released(job) == [100, 200, 250]
    assert (report.totals.duplicates, report.totals.late) == (3, 0)


def test_repeat_in_latest_mode_is_dropped(job: Job) -> None:
    """A repeat stands later in the source than its original, and yet it is no newer state."""
    job = job.with_settings(mode="latest", duplicates="event-id")
    job.produce([_event("p:0", 100, 0)])
    job.run()
    job.produce([_event("p:0", 100, 0), _event("p:1", 101, 0), _event("p:1", 101, 0)])
    report = job.run()
    assert _released(job) == [100, 101]
    assert (report.totals.duplicates, report.totals.late) == (2, 0)
