"""Barred topics: they take no batch for a time, and only their senders wait.

A topic is barred while a broker answers that the producer may not write to it. It is also barred
while a broker refuses timestamps that the producer cannot correct. Its batches keep their numbers
and their place, and are tried again. The bar ends with the first batch that gets in. It also ends
when no batch of the topic is left, since nobody would hear of a change.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from sequitur.base.log import Logger
from sequitur.errors import RetriableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from sequitur.producer.batching.budget import BufferBudget, Outstanding
    from sequitur.producer.delivery.send_queues import SendQueues

_SHARE: Final = 4
"""No event is accepted while all barred topics together have a quarter of buffer or journal."""
_log = Logger(__name__)


class BarredTopics:
    """Say which topics are barred and why, and hold their senders."""

    def __init__(
        self,
        queues: SendQueues,
        outstanding: Outstanding,
        budget: BufferBudget,
        *,
        journal_bytes: Callable[[Collection[str]], int] | None,
        journal_limit: int,
    ) -> None:
        self.reasons: dict[str, str] = {}
        self._queues = queues
        self._outstanding = outstanding
        self._budget = budget
        self._journal_bytes = journal_bytes
        self._journal_limit = journal_limit
        self._changed = asyncio.Event()
        self._is_closed = False

    @property
    def blocked_reason(self) -> str | None:
        """Why one of the topics takes no events; None if all do."""
        return next((f"{reason}: events wait" for reason in self.reasons.values()), None)

    def bar(self, topic: str, reason: str) -> None:
        """Hold the senders of a topic, until `lift`."""
        if self.reasons.get(topic) != reason:
            _log.warning("a topic takes no batches: they wait", topic=topic, reason=reason)
        self.reasons[topic] = reason
        self._spare()

    def lift(self, topic: str) -> None:
        """End the bar of a topic: it takes batches, or none of its batches is left."""
        if self.reasons.pop(topic, None) is not None:
            _log.info("a topic takes batches again", topic=topic)
            self._spare()
            self._look_again()

    def look_again(self) -> None:
        """Let waiting senders look whether there is room: batches may have ended."""
        if self.reasons:
            waiting = {queue.topic for queue in self._queues if not queue.is_empty}
            for topic in self.reasons.keys() - waiting:
                self.lift(topic)
            self._spare()
            self._look_again()

    def holds(self, topic: str) -> bool:
        """Return whether senders of a topic have to wait."""
        return topic in self.reasons and self._is_full()

    async def admit(self, topic: str, deadline_s: float) -> None:
        """Wait until a topic is not barred, or barred topics have room."""
        try:
            async with asyncio.timeout_at(deadline_s):
                while self.holds(topic):
                    if self._is_closed:
                        raise RetriableError("the producer was closed")
                    await self._changed.wait()
        except TimeoutError:
            reason = self.reasons.get(topic, "")
            raise RetriableError(f"not accepted within delivery_timeout: {reason}") from None

    async def lifted(self, topic: str) -> None:
        """Wait until a topic is not barred, or the producer is closed."""
        while topic in self.reasons and not self._is_closed:
            await self._changed.wait()

    def close(self) -> None:
        """Let all waiting senders go: the producer closes, and accepts nothing."""
        self._is_closed = True
        self._look_again()

    def _in_memory(self) -> int:
        """Return how many bytes of memory the batches of barred topics take."""
        barred = self.reasons
        cut = sum(batch.size for batch in self._outstanding.batches if batch.topic in barred)
        return cut + sum(q.accumulated.open_bytes for q in self._queues if q.topic in barred)

    def _spare(self) -> None:
        """Do not count the memory that barred topics take beyond their share: others may use it."""
        beyond = self._in_memory() - self._budget.limit // _SHARE if self.reasons else 0
        self._budget.spare(max(0, beyond))

    def _is_full(self) -> bool:
        if self._in_memory() * _SHARE >= self._budget.limit:
            return True
        if self._journal_bytes is None:
            return False
        return self._journal_bytes(self.reasons.keys()) * _SHARE >= self._journal_limit

    def _look_again(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
