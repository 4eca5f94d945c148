"""Takes replay requests in: events that are given back wait for their first attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sequitur.consumer.topology.settling.made_tuple import is_made
from sequitur.consumer.topology.step.events import PendingEvent
from sequitur.kafka.partition import KeyPartitioner
from sequitur.pipelines.rows.columns import outputs_of
from sequitur.pipelines.store.files import sync
from sequitur.pipelines.topology.event_files import events, write_waiting
from sequitur.pipelines.topology.replay_requests import each_once, read_request, requests

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from sequitur.pipelines.store.files import Location


class ReplayIntake:
    """The requests of a job that are not taken in yet."""

    def __init__(self, folder: Location) -> None:
        self._folder = folder
        self._found: tuple[Location, ...] | None = None

    def are_there(self, taken: Collection[str]) -> bool:
        """Look whether there are any."""
        self._found = tuple(path for path in requests(self._folder) if path.name not in taken)
        return bool(self._found)

    def take(self) -> tuple[Location, ...]:
        """Return those that the last look has found, or else those that are there now."""
        found, self._found = self._found, None
        return requests(self._folder) if found is None else found

    def delete(self, taken: Collection[str]) -> None:
        """Delete those that a step has taken in which is done."""
        for name in taken:
            (self._folder / name).unlink(missing_ok=True)
        if taken:
            sync(self._folder)  # one that came back would be taken in again
        if self._found is not None:
            self._found = tuple(path for path in self._found if path.name not in taken)


class Replayed(NamedTuple):
    """What a task of the first stage is given back."""

    events: int
    made: int  # how many of them are tuples that bolts made
    files: Sequence[Location]


def write_replayed(
    paths: Sequence[Location],
    *,
    waiting: Iterable[tuple[Any, ...]],
    folder: Location,
    partitions: int,
) -> list[Replayed]:
    """Write the events of requests to files of events that wait."""
    requested = (event for path in paths for event in events(read_request(path)))
    found = list(each_once(requested, waiting))
    numbers = np.array([event[5] for event in found], np.int64)
    # What a bolt made is given out by its own task, or where that is elsewhere by any.
    keys = [None if is_made(event) else event[0] for event in found]
    places = outputs_of(KeyPartitioner(partitions), keys, numbers)
    given: list[list[PendingEvent]] = [[] for _ in range(partitions)]
    for place, event in zip(places.tolist(), found, strict=True):
        given[place].append(PendingEvent(event, 0, None))
    written = [write_waiting(folder, some) for some in given]
    return [
        Replayed(len(some), sum(is_made(one.event) for one in some), [] if file is None else [file])
        for some, file in zip(given, written, strict=True)
    ]
