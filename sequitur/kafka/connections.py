"""Connections to the brokers of a cluster, and their event loop, for code that is not asynchronous.

A process keeps its connections by thread and by settings: Python workers run many tasks, and a
driver several streams. It closes connections that were not used for long, since they may be broken.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from sequitur.errors import FatalError, RetriableError
from sequitur.kafka.leaders import Leaders
from sequitur.kafka.settings import to_reach
from sequitur.kafka.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import TypeVar

    from sequitur.kafka.settings import KafkaSettings

    T = TypeVar("T")

_REQUEST_TIMEOUT: Final = timedelta(seconds=10)
"""After so long a hanging broker is asked again, over another connection."""
_RELIED_ON_S: Final = 60.0
_KNOWN_FOR_S: Final = 60.0
_BATCH_BYTES: Final = 256 << 10
"""The size of a batch, whatever limit its topic has."""
_BATCH_OVERHEAD: Final = 128

_taking: Final = threading.Lock()
_kept: dict[tuple[int, KafkaSettings], Connections] = {}

_LOOK_S: Final = 0.2
_STOPPING_S: Final = 3.0


class Connections:
    """Connections to one cluster. Two threads must not use them at once."""

    def __init__(self, kafka: KafkaSettings, bound: Bound | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._used_s = time.monotonic()
        self._thread = threading.current_thread()
        self._is_interrupted = False
        self._limits: dict[str, tuple[float, int]] = {}
        try:
            self.wire = self.run(_wire(kafka), bound)
        except BaseException:
            self._loop.close()
            raise
        self.leaders = Leaders(self.wire)

    def run(self, work: Coroutine[Any, Any, T], bound: Bound | None = None) -> T:
        """Run the event loop until the work is done; where that is interrupted, all of it ends.

        Else the work would go on, unseen, with whatever the loop is run for next.
        """
        task = self._loop.create_task(work if bound is None else bound.hold(work))
        try:
            if not _is_in_event_loop():
                return self._loop.run_until_complete(task)
            # A notebook runs all its cells in one loop, and a thread has at most one.
            with ThreadPoolExecutor(1) as beside:
                return beside.submit(self._loop.run_until_complete, task).result()
        finally:
            self._used_s = time.monotonic()
            if not task.done():
                self._end(task)

    def _end(self, interrupted: asyncio.Task[Any]) -> None:
        # The interrupt may have ended the task that reads answers.
        self._is_interrupted = True
        interrupted.cancel()
        with contextlib.suppress(asyncio.CancelledError, KeyboardInterrupt):
            self._loop.run_until_complete(interrupted)

    async def batch_bytes_of(self, topic: str) -> int:
        """Return how large a topic's batch may be before compression. It is read once a minute."""
        now_s = time.monotonic()
        known = self._limits.get(topic)
        if known is not None and now_s - known[0] < _KNOWN_FOR_S:
            return known[1]
        limit = _BATCH_BYTES
        # Without the right to ask, assume the broker's default, which is larger.
        with contextlib.suppress(FatalError):
            limit = min(limit, await self.wire.max_message_bytes(topic))
        limit -= _BATCH_OVERHEAD
        self._limits[topic] = now_s, limit
        return limit

    def forget_limit(self, topic: str) -> None:
        """Read a topic's limit again after a batch within the limit was refused."""
        self._limits.pop(topic, None)

    def is_fresh(self) -> bool:
        """Return whether this thread used them recently and was not interrupted."""
        is_ours = self._thread is threading.current_thread()
        is_recent = time.monotonic() - self._used_s < _RELIED_ON_S
        return is_ours and is_recent and not self._is_interrupted

    def is_abandoned(self) -> bool:
        return not self._thread.is_alive()

    def close(self) -> None:
        """Close them. If another thread uses them as the process ends, they end with it."""
        if self._loop.is_running():
            return
        self.run(self.wire.close())
        self.run(self.leaders.close())
        self._loop.close()


def kept_connections(kafka: KafkaSettings, bound: Bound | None = None) -> Connections:
    """Return this thread's connections to a cluster, reopened if they are not fresh."""
    key = threading.get_ident(), to_reach(kafka)
    known = _kept.get(key)
    if known is None or not known.is_fresh():
        _close_unused(key)
        known = _kept[key] = Connections(kafka, bound)
    return known


def close_own() -> None:
    """Close the connections of this thread, which is about to end."""
    own = threading.get_ident()
    with _taking:
        found = [_kept.pop(key) for key in list(_kept) if key[0] == own]
    for one in found:
        one.close()


def _close_unused(own: tuple[int, KafkaSettings]) -> None:
    """Close this thread's connections, and those of ended threads, whose ids are used again."""
    with _taking:
        unused = {key: one for key, one in _kept.items() if key == own or one.is_abandoned()}
        for key in unused:
            del _kept[key]
    for one in unused.values():
        one.close()


@atexit.register
def _close_all() -> None:
    while _kept:
        _kept.popitem()[1].close()


@dataclass(frozen=True, slots=True)
class Bound:
    """How long requests may take together, whatever each of them may take alone."""

    until_s: float  # by the clock of `time.monotonic`
    is_stopping: Callable[[], bool] = bool  # whether nobody waits for answers any more

    @property
    def left_s(self) -> float:
        return max(0.0, self.until_s - time.monotonic())

    async def hold(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work within the bound.

        Raises:
            RetriableError: It is not done in time, or nobody waits for it.
        """
        task = asyncio.ensure_future(work)
        try:
            # Work that ends by itself at the limit ends first, and returns the answers so far.
            end_s = self.until_s + _LOOK_S
            while not task.done() and time.monotonic() < end_s and not self.is_stopping():
                await asyncio.wait([task], timeout=_LOOK_S)
            if task.done():
                return task.result()
            raise RetriableError("the job is to stop" if self.left_s else "no broker answers")
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])


class GivesWay:
    """Tells when work of a job that is to stop waits for brokers in vain.

    Brokers that answer are waited for: a job ends once its last rows are there.
    """

    def __init__(self, is_stopping: Callable[[], bool]) -> None:
        self._is_stopping = is_stopping
        self._heard_s = time.monotonic()

    def __call__(self) -> bool:
        """Return whether the job has to stop and brokers have been silent for some seconds."""
        return self._is_stopping() and time.monotonic() - self._heard_s > _STOPPING_S

    def heard(self) -> None:
        self._heard_s = time.monotonic()

    @property
    def bound(self) -> Bound:
        return Bound(math.inf, self)


async def _wire(kafka: KafkaSettings) -> Wire:
    wire = Wire(kafka, client_id="sequitur-reorder", request_timeout=_REQUEST_TIMEOUT)
    try:
        await wire.start()
    except BaseException:
        await wire.close()
        raise
    return wire


def _is_in_event_loop() -> bool:
    with contextlib.suppress(RuntimeError):
        return asyncio.get_running_loop().is_running()
    return False
