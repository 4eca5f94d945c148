"""Reading the control topic, beside the producer and on connections of its own.

Nothing here stops a producer, or lets it wait: while the topic cannot be read, what was read
before counts until it is stale, and then nothing is limited.
"""

from __future__ import annotations

import asyncio
import functools
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from sequitur.base.log import Logger
from sequitur.base.retry import Backoff
from sequitur.errors import BrokerError, FatalError, RetriableError
from sequitur.kafka.control import CONTROL_TOPIC
from sequitur.kafka.log_reading import EARLIEST, LATEST, committed_behind, offset_at
from sequitur.kafka.wire import Wire, close_within

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from sequitur.kafka.settings import KafkaSettings, TokenProvider
    from sequitur.producer.quota.gate import QuotaGate

_ANSWER_TIMEOUT: Final = timedelta(seconds=5)
"""A broker that is silent for so long is asked anew: quotas are to be known within seconds."""
_TOPIC_CHECK_S: Final = 1.0
_PARTITION: Final = 0

_log = Logger(__name__)


class ControlReader:
    """Gives a gate the records of the control topic, from its beginning on."""

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
        self._gate = gate
        self._random: Callable[[], float] = random.random
        self._backoff = Backoff()
        self._topic_id: bytes | None = None
        self._offset = 0
        self._failures = 0
        self._told: str | None = None
        self._reading: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to read, in the background."""
        self._reading = asyncio.get_running_loop().create_task(self._run())

    async def close(self, timeout_s: float) -> None:
        """Read no more."""
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
        self._failures += 1
        if reason != self._told:
            self._told = reason
            tell = _log.info if isinstance(error, RetriableError) else _log.warning
            tell("backlog quotas cannot be read", topic=CONTROL_TOPIC, reason=reason)
        await asyncio.sleep(self._backoff.delay_ms(self._failures, self._random()) / 1000)

    async def _find_topic(self) -> bool:
        """Learn where the topic is; return False while there is none, and nothing is limited."""
        if not await self._wire.refresh([CONTROL_TOPIC]):
            raise RetriableError("no broker answers")
        if self._wire.is_unauthorized(CONTROL_TOPIC):
            raise FatalError(f"topic {CONTROL_TOPIC}: no right to read it")
        topic_id = self._wire.topic_id(CONTROL_TOPIC)
        if topic_id is None:
            return False
        if topic_id != self._topic_id:
            self._gate.forget()
            self._topic_id, self._offset = topic_id, 0
        return True

    async def _follow(self) -> None:
        """Read on, until the leader is another."""
        node = self._wire.leader(CONTROL_TOPIC, _PARTITION)
        if node is None:
            raise RetriableError("the topic has no leader")
        ask = functools.partial(self._wire.ask, node)
        first, end = [
            await offset_at(ask, CONTROL_TOPIC, _PARTITION, time_ms)
            for time_ms in (EARLIEST, LATEST)
        ]
        if not first <= self._offset <= end:
            self._offset = first  # what was read before is gone from the log
        offset = self._offset
        records: list[tuple[bytes | None, bytes | None]] = []
        while True:
            read = await committed_behind(ask, CONTROL_TOPIC, _PARTITION, offset)
            records += read.records
            offset = read.next_offset
            if read.is_all:
                # Not before: of a topic the last record counts, and there may be older ones.
                self._gate.take(records)
                self._offset = offset
                records = []
            if self._told is not None:
                _log.info("backlog quotas are read", topic=CONTROL_TOPIC)
            self._told, self._failures = None, 0
