"""Connections to the brokers, and their event loop, for code that is not asynchronous."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from sequitur.errors import FatalError
from sequitur.kafka.leaders import Leaders
from sequitur.kafka.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import TypeVar

    from sequitur.kafka.settings import KafkaSettings

    T = TypeVar("T")

_REQUEST_TIMEOUT: Final = timedelta(seconds=30)
_RELIED_ON_S: Final = 60.0
_KNOWN_FOR_S: Final = 60.0
_BATCH_BYTES: Final = 256 << 10
"""Of a batch, whatever its topic takes."""
_BATCH_OVERHEAD: Final = 128

_taking: Final = threading.Lock()
_kept: dict[tuple[int, str], Connections] = {}
"""This process's connections, by thread and by their settings: Python workers run many tasks, and a
driver several streams. Connections that were not used for long are closed, since they may be
broken."""


class Connections:
    """Connections to one cluster. Not for use by two threads at once."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._loop = asyncio.new_event_loop()
        self._used_s = time.monotonic()
        self._thread = threading.current_thread()
        self._is_interrupted = False
        self._limits: dict[str, tuple[float, int]] = {}
        try:
            self.wire = self.run(_wire(kafka))
        except BaseException:
            self._loop.close()
            raise
        self.leaders = Leaders(self.wire)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the event loop until the work is done; where that is interrupted, all of it ends.

        Else the work would go on, unseen, with whatever the loop is run for next.
        """
        task = self._loop.create_task(work)
        try:
            return self._loop.run_until_complete(task)
        finally:
            self._used_s = time.monotonic()
            if not task.done():
                self._end(task)

    def _end(self, interrupted: asyncio.Task[Any]) -> None:
        # It may have been the task that reads answers which the interrupt has ended.
        self._is_interrupted = True
        interrupted.cancel()
        with contextlib.suppress(asyncio.CancelledError, KeyboardInterrupt):
            self._loop.run_until_complete(interrupted)

    def batch_bytes(self, topic: str) -> int:
        """Return how large a topic's batch may be before compression; asked for once a minute."""
        return self.run(self.batch_bytes_of(topic))

    async def batch_bytes_of(self, topic: str) -> int:
        """Return the same in the event loop."""
        now_s = time.monotonic()
        known = self._limits.get(topic)
        if known is not None and now_s - known[0] < _KNOWN_FOR_S:
            return known[1]
        limit = _BATCH_BYTES
        # Without the right to ask, the broker's default is assumed, which is larger.
        with contextlib.suppress(FatalError):
            limit = min(limit, await self.wire.max_message_bytes(topic))
        limit -= _BATCH_OVERHEAD
        self._limits[topic] = now_s, limit
        return limit

    def forget_limit(self, topic: str) -> None:
        """Ask for a topic's limit again: a batch within it was refused."""
        self._limits.pop(topic, None)

    def is_fresh(self) -> bool:
        """Return whether this thread used them recently, and was not interrupted."""
        is_ours = self._thread is threading.current_thread()
        is_recent = time.monotonic() - self._used_s < _RELIED_ON_S
        return is_ours and is_recent and not self._is_interrupted

    def is_abandoned(self) -> bool:
        """Return whether the thread that opened them has ended."""
        return not self._thread.is_alive()

    def close(self) -> None:
        """Close them; those that another thread uses, as the process ends, end with it."""
        if self._loop.is_running():
            return
        self.run(self.wire.close())
        self.run(self.leaders.close())
        self._loop.close()


def kept_connections(kafka: KafkaSettings) -> Connections:
    """This thread's connections to a cluster, reopened when they are not fresh."""
    key = threading.get_ident(), repr(kafka.librdkafka())
    known = _kept.get(key)
    if known is None or not known.is_fresh():
        _close_unused(key)
        known = _kept[key] = Connections(kafka)
    return known


def _close_unused(own: tuple[int, str]) -> None:
    """Close this thread's, and those of threads that have ended, whose numbers others get."""
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


async def _wire(kafka: KafkaSettings) -> Wire:
    wire = Wire(kafka, client_id="sequitur-reorder", request_timeout=_REQUEST_TIMEOUT)
    try:
        await wire.start()
    except BaseException:
        await wire.close()
        raise
    return wire
