"""Backlog quotas: sends to a topic wait, or are refused, while its backlog is over the quota.

`QuotaGate` is what senders pass. `ControlReader` reads the control topic for it, beside the
producer and on connections of its own. That stops no producer and lets none wait: while the topic
cannot be read, what was read before counts until it is stale, and then nothing is limited. Who
checks quotas writes the records, which `sequitur.kafka.control` describes.
"""

from __future__ import annotations

import asyncio
import functools
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from sequitur.base.log import Logger
from sequitur.base.retry import Backoff, Retry
from sequitur.errors import (
    BacklogQuotaError,
    BrokerError,
    ControlRecordError,
    FatalError,
    RetriableError,
)
from sequitur.kafka.control import PROXIMITY_FROM, BacklogState, ToDo, control_topic, topic_of
from sequitur.kafka.log_reading import EARLIEST, FETCH_WAIT_MS, LATEST, fetch_one, offset_at
from sequitur.kafka.wire import Wire, close_within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from sequitur.kafka.settings import KafkaSettings, TokenProvider

_LOOK_EVERY_S: Final = 0.25
"""How often states that limit are looked at: a stale one may hold sends for so much longer."""
_TOLD_AT_MOST: Final = 100
_ANSWER_TIMEOUT: Final = timedelta(seconds=5)
"""A broker that is silent for so long is asked anew: quotas are to be known within seconds."""
_TOPIC_CHECK_S: Final = 1.0
_PARTITION: Final = 0
_log = Logger(__name__)


def _steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class QuotaGate:
    """Let sends pass, hold them, or refuse them, by what is known of the backlog of their topic."""

    def __init__(self, now_ms: Callable[[], int] = _steady_ms) -> None:
        self._now_ms = now_ms
        self._states = KnownBacklogs()
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
        """Take records of the control topic: key and value. Bad ones are logged and ignored.

        Only the last record of a topic counts. When the log is read again from its beginning, the
        states before it were superseded long ago.
        """
        now_ms = self._now_ms()
        last: dict[str, BacklogState | None] = {}
        for key, value in records:
            try:
                found = self._states.read(key, value)
            except ControlRecordError as error:
                if key not in self._told and len(self._told) < _TOLD_AT_MOST:
                    self._told.add(key)
                    _log.warning("a control record is ignored", reason=str(error))
                continue
            if found is not None:
                last[found[0]] = found[1]
        for topic, state in last.items():
            self._states.note(topic, state, now_ms)
        self._look_again()

    def forget(self) -> None:
        """Forget the backlogs of all topics: the control topic was deleted and created again."""
        self._states.forget()
        self._look_again()

    async def admit(self, topic: str, deadline_s: float) -> None:
        """Wait until an event of the topic may be accepted.

        The caller accepts it in the same step of the event loop, or the next one goes first.
        """
        state = self.refuse_or_state(topic)
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
                while (state := self.refuse_or_state(topic)) is not None:
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
        """Let all waiting senders go: the producer closes, and accepts nothing."""
        self._closed = True
        self._look_again()

    def refuse_or_state(self, topic: str) -> BacklogState | None:
        """Return the state that holds the topic; None without one."""
        if self._closed:
            raise RetriableError("the producer was closed")
        state = self._states.limited.get(topic)
        if state is not None and state.to_do is ToDo.REFUSE:
            self._refused += 1
            raise BacklogQuotaError(topic, state, held=False)
        return state

    def _look_again(self) -> None:
        """Wake the waiting senders; look again soon, while some states limit."""
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


class _Line:
    """Senders of one topic that wait, in the order they came."""

    __slots__ = ("senders", "state", "turn")

    def __init__(self, state: BacklogState) -> None:
        self.turn = asyncio.Lock()
        self.senders = 0
        self.state = state


@dataclass(frozen=True, slots=True)
class QuotaStatistics:
    """What backlog quotas did to the sends of a producer since it was started."""

    held: int  # calls that had to wait
    refused: int  # calls that raised, at once or after their wait
    # the largest backlog of the topics that it sends to, as a share of its quota; more than 1
    # beyond it. None below 0.5, and where nothing is known
    proximity: float | None


class KnownBacklogs:
    """The last backlog state of each topic, until it was there for its `valid_for_ms`. No I/O.

    Times are milliseconds of a clock that is never set.
    """

    __slots__ = ("_arrived", "_known", "limited")

    def __init__(self) -> None:
        self._arrived: dict[str, tuple[BacklogState, int]] = {}
        self._known: dict[str, BacklogState] = {}
        self.limited: dict[str, BacklogState] = {}

    def take(self, key: bytes | None, value: bytes | None, now_ms: int) -> None:
        """Take a record of the control topic. A record without a value removes a topic's state."""
        if (found := self.read(key, value)) is not None:
            self.note(*found, now_ms)

    @staticmethod
    def read(key: bytes | None, value: bytes | None) -> tuple[str, BacklogState | None] | None:
        """Return topic and state of a record; None if it is of another kind."""
        topic = topic_of(key)
        if topic is None:
            return None
        return topic, None if value is None else BacklogState.decode(topic, value)

    def note(self, topic: str, state: BacklogState | None, now_ms: int) -> None:
        self._known.pop(topic, None)
        self.limited.pop(topic, None)
        if state is None:
            self._arrived.pop(topic, None)
            return
        # A state that is read again, as from the log's beginning, keeps its time of arrival.
        if topic not in self._arrived or self._arrived[topic][0] != state:
            self._arrived[topic] = state, now_ms
        if self._is_stale(topic, now_ms):
            return
        self._known[topic] = state
        if state.to_do is not ToDo.GO_ON:
            self.limited[topic] = state

    def expire(self, now_ms: int) -> None:
        """Forget what does not count any more."""
        for topic in [topic for topic in self._known if self._is_stale(topic, now_ms)]:
            del self._known[topic]
            self.limited.pop(topic, None)

    def forget(self) -> None:
        self._arrived.clear()
        self._known.clear()
        self.limited.clear()

    def proximity(self, topics: Iterable[str]) -> float | None:
        """Return how near these topics are to their quotas: the largest share of one."""
        states = (self._known.get(topic) for topic in topics)
        shares = (state.proximity for state in states if state is not None)
        largest = max((share for share in shares if share is not None), default=0.0)
        return largest if largest >= PROXIMITY_FROM else None

    def _is_stale(self, topic: str, now_ms: int) -> bool:
        state, arrived_ms = self._arrived[topic]
        return arrived_ms + state.valid_for_ms < now_ms


class ControlReader:
    """Read the control topic from its beginning on, and give its records to a gate."""

    def __init__(
        self,
        kafka: KafkaSettings,
        gate: QuotaGate,
        *,
        client_id: str,
        random: Random,
        token_provider: TokenProvider | None = None,
    ) -> None:
        # A broker answers a connection's requests one by one, and keeps a reader waiting for
        # records: on a connection of the producer's, batches would wait with it.
        self._wire = Wire(
            kafka,
            client_id=client_id,
            request_timeout=_ANSWER_TIMEOUT,
            token_provider=token_provider,
        )
        self._topic = control_topic(kafka)
        self._gate = gate
        self._attempts = Retry(backoff=Backoff(), random=random.random).attempts()
        self._topic_id: bytes | None = None
        self._offset = 0
        self._told: str | None = None
        self._reading: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._reading = asyncio.get_running_loop().create_task(self._run())

    async def close(self, timeout_s: float) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading], timeout=timeout_s / 2)
        await close_within(self._wire, timeout_s / 2)

    async def _run(self) -> None:
        while True:
            try:
                if await self._find_topic():
                    await self._follow()
                else:
                    await asyncio.sleep(_TOPIC_CHECK_S)
            except BrokerError as error:
                await self._pause(error, str(error))
            except Exception as error:  # noqa: BLE001 - events are sent whatever happens here
                await self._pause(error, repr(error))

    async def _pause(self, error: Exception, reason: str) -> None:
        """Tell what went wrong, once, and wait before the next attempt."""
        if reason != self._told:
            self._told = reason
            tell = _log.info if isinstance(error, RetriableError) else _log.warning
            tell("backlog quotas cannot be read", topic=self._topic, reason=reason)
        await self._attempts.pause(error)

    async def _find_topic(self) -> bool:
        """Learn where the topic is; return False while there is none, and nothing is limited."""
        if not await self._wire.refresh([self._topic]):
            raise RetriableError("no broker answers")
        if self._wire.is_unauthorized(self._topic):
            raise FatalError(f"topic {self._topic}: no right to read it")
        topic_id = self._wire.topic_id(self._topic)
        if topic_id is None:
            return False
        if topic_id != self._topic_id:
            self._gate.forget()
            self._topic_id, self._offset = topic_id, 0
        return True

    async def _follow(self) -> None:
        node = self._wire.leader(self._topic, _PARTITION)
        if node is None:
            raise RetriableError("the topic has no leader")
        ask = functools.partial(self._wire.ask, node)
        first, end = [
            await offset_at(ask, self._topic, _PARTITION, time_ms) for time_ms in (EARLIEST, LATEST)
        ]
        if not first <= self._offset <= end:
            self._offset = first  # what was read before is gone from the log
        offset = self._offset
        records: list[tuple[bytes | None, bytes | None]] = []
        while True:
            read = await fetch_one(ask, self._topic, _PARTITION, offset, wait_ms=FETCH_WAIT_MS)
            records += [(record.key, record.value) for record in read.rows()]
            offset = read.next_offset
            if read.is_all:
                # Not before: only the last record of a topic counts, and these may be older.
                self._gate.take(records)
                self._offset = offset
                records = []
            if self._told is not None:
                _log.info("backlog quotas are read", topic=self._topic)
            self._told = None
            self._attempts.succeed()
