"""A job that dies as it writes down what it has done, and what holds then: on Spark, on lists."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest

from sequitur.consumer.reorder.key_state import FoldLimits
from sequitur.consumer.reorder.reasons import LAST_RELEASED_HEADER
from sequitur.pipelines.store.storage import LocalStorage, RemoteStorage
from sequitur.producer import EVENT_ID_HEADER
from tests.support.events import T0, Event, event, time_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.support.broker_job import BrokerJob
    from tests.support.events import Written
    from tests.support.list_job import ListJob

DOCUMENTS: Final = ("staged/", "frontier/", "plans/", "done/")
"""What a step writes, in this order: its rows are staged, decided, about to go out, out."""
DECIDED: Final = ("plans/", "done/")
"""Who dies at these has written down what becomes of the step's rows."""


class DiedError(Exception):
    """The process dies here."""


@contextlib.contextmanager
def deadly(document: str, *, is_written: bool = False) -> Iterator[None]:
    """Whoever writes such a document dies: before it stands, or once it does."""
    with pytest.MonkeyPatch.context() as patched:
        for kind in (LocalStorage, RemoteStorage):
            patched.setattr(kind, "create", _dying_at(document, is_written, kind.create))
        yield


@contextlib.contextmanager
def dying_before(document: str) -> Iterator[None]:
    with deadly(document), pytest.raises(DiedError):
        yield


@contextlib.contextmanager
def dying_behind(document: str) -> Iterator[None]:
    with deadly(document, is_written=True), pytest.raises(DiedError):
        yield


def _dying_at(document: str, is_written: bool, create: Callable[..., bool]) -> Callable[..., bool]:
    def dying(storage: Any, name: str, *how: Any, **named: Any) -> bool:
        if not name.startswith(document):
            return create(storage, name, *how, **named)
        if is_written:
            create(storage, name, *how, **named)
        raise DiedError

    return dying


def times_of(records: Iterable[Written], key: str) -> list[int]:
    return [time_of(record) - T0 for record in records if record.key == key.encode()]


def at_frontier_4000(job: BrokerJob | ListJob) -> None:
    job.produce([event(T0 + t, key="a", partition=0) for t in (1000, 3000, 4500)])
    job.produce([event(T0 + 4000, key="c", partition=1)])
    job.produce([event(T0 + 5000, key="other", partition=p) for p in range(4)])
    report = job.run()
    assert report.frontier_ms == T0 + 4000
    assert times_of(job.released(), "a") == [1000, 3000]


def check_verdicts_stay(job: BrokerJob | ListJob, place: str) -> None:
    """The step rescues and refuses the same rows, each of them once."""
    job.fold_limits = FoldLimits(runs=1)
    at_frontier_4000(job)
    job.produce([event(T0 + 6000, key="other", partition=p) for p in range(4)])
    job.run()  # the first run is through: the next step folds it
    before = Counter(_named(job.released()))
    job.produce([event(T0 + t, key="a", partition=2, n=n) for n, t in enumerate((4600, 4400))])
    job.produce([event(T0 + t, key="c", partition=2) for t in (3999, 4700)])
    with dying_before(place):
        job.run()
    # Even if the settings change meanwhile: what is logged stays as it was decided.
    report = (job.with_settings(late_policy="drop") if place in DECIDED else job).run()
    rescued, late = [("a", 4600), ("c", 4700)], [("a", 4400), ("c", 3999)]
    assert Counter(rescued) == Counter(_named(job.released())) - before
    assert Counter(late) == Counter(_named(job.late()))
    assert {r.header(LAST_RELEASED_HEADER) for r in job.late()} == {
        str(T0 + 4500).encode(),
        str(T0 + 4000).encode(),
    }
    assert (report.totals.late, report.totals.held) == (2, 4)
    job.run(drain=True)


def check_repeats_stay(job: BrokerJob | ListJob, place: str) -> None:
    """No row is a repeat of itself, also if the setting changes meanwhile."""
    job = job.with_settings(duplicates="event-id")
    job.produce([of_event("p:0", 100, 0), of_event("p:0", 100, 1), of_event("p:1", 200, 1)])
    job.produce([event(T0 + 1300, key="other", partition=p) for p in range(4)])
    assert job.run().frontier_ms == T0 + 300
    job.produce([of_event("p:1", 200, 2), of_event("p:2", 250, 2), of_event("p:2", 250, 2)])
    with dying_before(place):
        job.run()
    report = (job.with_settings(duplicates="keep") if place in DECIDED else job).run(drain=True)
    assert times_of(job.released(), "k") == [100, 200, 250]
    assert (report.totals.duplicates, report.totals.late) == (3, 0)


def check_newest_stay(job: BrokerJob | ListJob, place: str) -> None:
    """In latest mode a batch is not compared with itself: the same rows pass, each once."""
    job = job.with_settings(mode="latest")
    job.produce([event(T0 + t, partition=1) for t in (3, 5)])
    job.run()
    job.produce([event(T0 + t, partition=1) for t in (4, 7, 6)])
    with dying_before(place):
        job.run()
    report = job.run()
    assert times_of(job.released(), "k") == [3, 5, 6, 7]
    assert times_of(job.late(), "k") == [4]
    assert (report.totals.released, report.totals.late) == (4, 1)


def of_event(event_id: str, time_ms: int, partition: int, header: str = EVENT_ID_HEADER) -> Event:
    value = b'{"at":%d}' % (T0 + time_ms)
    return Event(value=value, key=b"k", partition=partition, headers=[(header, event_id.encode())])


def _named(records: Iterable[Written]) -> list[tuple[str, int]]:
    return [((record.key or b"").decode(), time_of(record) - T0) for record in records]
