"""Where sends wait, or are refused, while their topic is over its backlog quota."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sequitur.base.log import Logger
from sequitur.errors import BacklogQuotaError, ControlRecordError, RetriableError
from sequitur.kafka.control import BacklogState, ToDo
from sequitur.producer.quota.states import BacklogStates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_LOOK_EVERY_S: Final = 0.25
"""How often states that limit are looked at: a stale one may hold sends for so much longer."""
_TOLD_AT_MOST: Final = 100

_log = Logger(__name__)


def _steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class QuotaStatistics:
    """What backlog quotas did to the sends of a producer since it was started."""

    held: int  # calls that had to wait
    refused: int  # calls that raised, at once or after their wait
    # the largest backlog of the topics that it sends to, as a share of its quota; more than 1
    # beyond it. None below 0.5, and where nothing is known
    proximity: float | None


class _Line:
    """Senders of one topic that wait, in the order they came."""

    __slots__ = ("senders", "state", "turn")

    def __init__(self, state: BacklogState) -> None:
        self.turn = asyncio.Lock()
        self.senders = 0
        self.state = state


class QuotaGate:
    """Let sends pass, hold them, or refuse them."""

    def __init__(self, now_ms: Callable[[], int] = _steady_ms) -> None:
        self._now_ms = now_ms
        self._states = BacklogStates()
        self._lines: dict[str, _Line] = {}
        self._changed = asyncio.Event()
        self._look: asyncio.TimerHandle | None = None
        self._closed = False
        self._told: set[bytes | None] = set()
        self._announced: set[str] = set()
        self._held = 0
        self._refused = 0

    def limits(self, topic: str) -> bool:
        """Return whether a send to the topic has to go through `admit`."""
        return topic in self._states.limited or topic in self._lines

    def take(self, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        """Take records of the control topic: key and value. Bad ones are told of, and ignored."""
        now_ms = self._now_ms()
        for key, value in records:
            try:
                self._states.take(key, value, now_ms)
            except ControlRecordError as error:
                if key not in self._told and len(self._told) < _TOLD_AT_MOST:
                    self._told.add(key)
                    _log.warning("a control record is ignored", reason=str(error))
        self._look_again()

    def forget(self) -> None:
        """Forget all states: their topic is gone, and another has taken its name."""
        self._states.forget()
        self._look_again()

    async def admit(self, topic: str, deadline_s: float) -> None:
        """Wait until an event of the topic may be accepted.

        The caller accepts it in the same step of the event loop, or the next one goes first.
        """
        state = self._refuse_or_state(topic)
        line = self._lines.get(topic)
        if line is None:
            if state is None:
                return
            line = self._lines[topic] = _Line(state)
            if topic not in self._announced:
                self._announced.add(topic)
                _log.warning("sends wait for a backlog", topic=topic, reason=state.figures)
        self._held += 1
        line.senders += 1
        try:
            async with asyncio.timeout_at(deadline_s), line.turn:
                while (state := self._refuse_or_state(topic)) is not None:
                    line.state = state
                    await self._changed.wait()
        except TimeoutError:
            self._refused += 1
            raise BacklogQuotaError(topic, line.state, held=True) from None
        finally:
            line.senders -= 1
            if not line.senders:
                del self._lines[topic]

    async def lifted(self, topic: str) -> None:
        """Wait until the topic is within its quota, whatever the policy, or the gate is closed."""
        while topic in self._states.limited and not self._closed:
            await self._changed.wait()

    def blocked_reason(self, topics: Iterable[str]) -> str | None:
        """Return why one of these topics takes no events; None if none is limited."""
        for topic in topics:
            state = self._states.limited.get(topic)
            if state is not None:
                return f"topic {topic} takes no events ({state.policy}): {state.figures}"
        return None

    def statistics(self, topics: Iterable[str]) -> QuotaStatistics:
        """Return the counts now, and how near to their quota these topics are."""
        self._states.expire(self._now_ms())
        return QuotaStatistics(self._held, self._refused, self._states.proximity(topics))

    def close(self) -> None:
        """Hold nobody any more: the producer closes, and accepts nothing."""
        self._closed = True
        self._look_again()

    def _refuse_or_state(self, topic: str) -> BacklogState | None:
        """Return the state that holds the topic; None without one."""
        if self._closed:
            raise RetriableError("the producer was closed")
        state = self._states.limited.get(topic)
        if state is not None and state.to_do is ToDo.REFUSE:
            self._refused += 1
            raise BacklogQuotaError(topic, state, held=False)
        return state

    def _look_again(self) -> None:
        """Let those who wait look at the states; soon again, while there are some that limit."""
        self._states.expire(self._now_ms())
        self._announced &= self._states.limited.keys()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        if self._look is not None:
            self._look.cancel()
            self._look = None
        if self._states.limited and not self._closed:
            loop = asyncio.get_running_loop()
            self._look = loop.call_later(_LOOK_EVERY_S, self._look_again)
