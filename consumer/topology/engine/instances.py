"""Bolts that are kept for another batch, so that `prepare` is not called in each.

A bolt may go on if its state is exactly what the batch is to begin with. The one that is kept has
gone through a batch to its end, and it is known what it gave as its snapshot then. When a batch
begins with another one (the batch is repeated, or another process had the task meanwhile), the
kept bolt cleans up, and another is made.
"""

from __future__ import annotations

import asyncio
import threading
import traceback
from typing import TYPE_CHECKING, NamedTuple

from sequitur.errors import NOT_THE_USERS

if TYPE_CHECKING:
    from collections.abc import Collection

    from sequitur.consumer.topology.api.bolt import BaseBolt, TopologyContext
    from sequitur.consumer.topology.api.collector import OutputCollector


class Instance(NamedTuple):
    """A bolt that was prepared."""

    bolt: BaseBolt  # a task's own copy
    context: TopologyContext
    collector: OutputCollector
    snapshot: bytes | None  # what it gave when its last batch was over, pickled; None for nothing


class Instances:
    """The bolts of a process that are ready for another batch, by component and task.

    A bolt belongs to the run that had it last. It goes on in that run, and in others only if the
    result of that run counted: what a bolt keeps on itself is in no snapshot to be compared.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], tuple[str, Instance]] = {}
        self._run = ""
        self._counted: Collection[str] = ()
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, run: str, counted: Collection[str]) -> None:
        """Take part in a run."""
        self._run, self._counted = run, counted

    def take(self, place: tuple[str, int], state: bytes | None) -> Instance | None:
        """Return the bolt of a task, if it has this state and its run counted; others clean up."""
        run, kept = self._kept.pop(place, ("", None))
        if kept is None:
            return None
        if kept.snapshot != state or (run != self._run and run not in self._counted):
            clean_up(kept.bolt)
            return None
        return kept

    def put(self, place: tuple[str, int], instance: Instance) -> None:
        """Keep the bolt of a task."""
        self._kept[place] = self._run, instance

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop of async bolts; it lives as long as they do, as they may use it."""
        if self._loop is None:
            self._loop = _started_loop()
        return self._loop

    def close_loop(self) -> None:
        """Stop the loop, and cancel what still runs on it."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def close(self) -> None:
        """Clean up all bolts."""
        self.close_loop()
        while self._kept:
            _, (_, instance) = self._kept.popitem()
            clean_up(instance.bolt)


def clean_up(bolt: BaseBolt) -> None:
    """Call a bolt's `cleanup`; what it raises is printed, and changes no batch."""
    try:
        bolt.cleanup()
    except NOT_THE_USERS:
        raise
    except BaseException:  # noqa: BLE001 - all its tuples are settled
        traceback.print_exc()


def _started_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()

    def run() -> None:
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    threading.Thread(target=run, name="bolts", daemon=True).start()
    return loop
