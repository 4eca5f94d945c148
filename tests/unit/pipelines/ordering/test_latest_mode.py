"""Latest mode: nothing is held, and no key goes back in time.

On Spark tests/spark/test_late_rows.py shows it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

import pytest

from sequitur.base.copy_headers import SOURCE_OFFSET_HEADER
from sequitur.consumer.reorder.key_state import FoldLimits
from sequitur.consumer.reorder.reasons import (
    LAST_RELEASED_HEADER,
    LATE_BY_HEADER,
    REASON_HEADER,
    STALE,
)
from sequitur.errors import CheckpointError, LateRowError
from tests.support.deaths import DOCUMENTS, check_newest_stay
from tests.support.events import T0, Event, by_partition, event, time_of

if TYPE_CHECKING:
    from tests.support.list_job import ListJob


class _Row(NamedTuple):
    """A row; of two of a key the greater one is the newer."""

    time_ms: int
    partition: int
    offset: int
    key: str | None

    @property
    def identity(self) -> tuple[bytes, bytes]:
        """Value and key."""
        return b'{"at":%d,"from":%d,"offset":%d}' % self[:3], (self.key or "").encode()

    @property
    def event(self) -> Event:
        """The row as it is produced."""
        value, key = self.identity
        return Event(value=value, key=key or None, partition=self.partition)


class _Reference:
    """Latest mode in plain Python."""

    def __init__(self) -> None:
        self.released: list[_Row] = []
        self.stale: list[_Row] = []
        self._last: dict[str, _Row] = {}

    def batch(self, rows: list[_Row]) -> None:
        """Let those pass that are newer than what was out of their key before."""
        before = dict(self._last)
        for row in sorted(rows, key=lambda row: row[:3]):
            last = None if row.key is None else before.get(row.key)
            if last is not None and row < last:
                self.stale.append(row)
                continue
            self.released.append(row)
            if row.key is not None:
                self._last[row.key] = row


@pytest.mark.promise("order-event-older-last")
def test_newest_of_each_key_passes_at_once(job: ListJob) -> None:
    """Over several lives and folds, the rows out and stale are the reference's, none is held."""
    job.fold_limits = FoldLimits(runs=2)
    job = job.with_settings(mode="latest")
    rng, model, ends = random.Random(7), _Reference(), [0, 0, 0, 0]
    for life in range(5):
        batch = []
        for _ in range(rng.randrange(20, 50)):
            source, key = rng.randrange(4), rng.choice(["a", "b", "c", "d", None])
            # Few different times, so that many are equal.
            time_ms = T0 + 1000 * life + 100 * rng.randrange(-15, 10)
            batch.append(_Row(time_ms, source, ends[source], key))
            ends[source] += 1
        job.produce(row.event for row in batch)
        job.run()
        model.batch(batch)
    assert all(done.totals.held == 0 for _, done in job.steps)
    expected = [row.identity for row in model.released]
    for partition in by_partition(job.released()).values():
        actual = [(record.value, record.key or b"") for record in partition]
        assert [row for row in expected if row in set(actual)] == actual
    assert job.report is not None
    totals = job.report.totals
    assert (totals.released, totals.late) == (len(model.released), len(model.stale))
    stale = sorted((record.value, record.key or b"") for record in job.late())
    assert sorted(row.identity for row in model.stale) == stale


@pytest.mark.promise("order-event-older-last")
def test_stale_rows_go_aside_with_what_they_missed(job: ListJob) -> None:
    """In the stale topic: the reason, what is out of the key, and how much older the row is."""
    job = job.with_settings(mode="latest")
    assert job.settings.late == f"{job.settings.output_topic}.stale"
    job.produce([event(T0 + 500, partition=1)])
    job.run()
    # Of equal times the row of the later place in the source is the newer one.
    job.produce([event(T0 + 500, partition=0), event(T0 + 500, partition=2)])
    job.run()
    job.produce([event(T0 + 499, partition=3), event(T0 + 500, partition=2)])
    report = job.run()
    assert [time_of(record) - T0 for record in job.released()] == [500, 500, 500]
    first, second = sorted(job.late(), key=time_of)
    assert (first.header(REASON_HEADER), first.header(LATE_BY_HEADER)) == (STALE.encode(), b"1")
    assert first.header(LAST_RELEASED_HEADER) == str(T0 + 500).encode()
    assert (second.header(LATE_BY_HEADER), second.header(SOURCE_OFFSET_HEADER)) == (b"0", b"0")
    assert (report.totals.read, report.totals.released, report.totals.late) == (5, 3, 2)


def test_latest_mode_keeps_to_the_late_policy(job: ListJob) -> None:
    """A stale row can end the job, and then goes aside under another policy."""
    strict = job.with_settings(mode="latest", late_policy="fail")
    job.produce([event(T0 + 500, partition=1)])
    strict.run()
    job.produce([event(T0 + 499, partition=1)])
    with pytest.raises(LateRowError, match=f"not newer than {T0 + 500}, the last released"):
        strict.run()
    assert job.with_settings(mode="latest", late_policy="drop").run().totals.late == 1


@pytest.mark.promise("order-event-older-last")
@pytest.mark.parametrize("place", DOCUMENTS)
def test_crash_in_latest_mode_is_recovered(job: ListJob, place: str) -> None:
    check_newest_stay(job, place)


def test_checkpoint_keeps_to_its_mode(job: ListJob) -> None:
    """What one mode keeps says too little for the other."""
    job.run()
    with pytest.raises(CheckpointError, match="belongs to a job with mode = 'ordered'"):
        job.with_settings(mode="latest").run()
