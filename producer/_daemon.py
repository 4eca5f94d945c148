"""The daemon `produce-events`: takes events from a source and sends them, until told to stop.

Two tasks and a line between them: one reads the source and puts each event into the line with the
moment it is due; the other sends what is due. The line is bounded, so a source that is faster than
Kafka is held back. A first SIGINT or SIGTERM stops the source, sends what stands in the line, and
waits for the answers up to `drain_timeout`; a second one ends it at once. Either way each event
that was accepted is in the report.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import structlog

from producer._client import IdempotentProducer
from producer._outcomes import Persisted
from producer._topics import create_topic
from producer.sources import CpuSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from producer._outcomes import Delivery
    from producer._settings import ProducerSettings, ProduceSettings
    from producer.settings import KafkaSettings
    from producer.sources import Source, SourceEvent

_MAX_LINE: Final = 100_000
_NO_TIME: Final = timedelta(milliseconds=100)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DaemonReport:
    """What became of the events of one run; `accepted` is the sum of the others.

    Attributes:
        name: The producer's name in the event ids.
        topic: Where they went.
        accepted: Events that were given to the producer.
        persisted: In the log.
        not_persisted: Not in the log, nor ever.
        possibly_persisted: Nobody knows.
    """

    name: str
    topic: str
    accepted: int
    persisted: int
    not_persisted: int
    possibly_persisted: int

    def as_json(self) -> dict[str, str | int]:
        """The report as a JSON object."""
        return asdict(self)


def run_daemon(
    kafka: KafkaSettings, producer: ProducerSettings, produce: ProduceSettings
) -> DaemonReport:
    """Run the daemon until its source ends or a signal comes; logs go to standard error.

    Raises:
        BrokerError: The cluster could not be reached, or turned us down, at the start.
    """
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    return asyncio.run(_Daemon(kafka, producer, produce).run())


class _Daemon:
    def __init__(
        self, kafka: KafkaSettings, producer: ProducerSettings, produce: ProduceSettings
    ) -> None:
        self._kafka = kafka
        self._producer_settings = producer
        self._produce = produce
        self._source: Source = CpuSource(rate_hz=produce.rate_hz, duration=produce.duration)
        self._line: asyncio.Queue[tuple[float, SourceEvent] | None] = asyncio.Queue(_MAX_LINE)
        self._hurry = asyncio.Event()
        self._at_once = asyncio.Event()
        self._started = False

    async def run(self) -> DaemonReport:
        """Send until the source ends, or a signal comes and what is held is sent."""
        producer = IdempotentProducer(self._kafka, self._producer_settings)
        stop_listening = self._listen()
        _log.info("starting", topic=self._produce.topic, source=self._produce.source)
        running = asyncio.create_task(self._run(producer))
        try:
            await self._unless_at_once(running)
            closing = asyncio.create_task(producer.close(self._produce.drain_timeout))
            await self._unless_at_once(closing)
        finally:
            running.cancel()
            await producer.close(_NO_TIME)
            stop_listening()
        if self._line.qsize() > 1:  # the mark of its end is not an event
            _log.warning(
                "events were taken from the source, and not sent", at_most=self._line.qsize()
            )
        report = self._report(producer)
        _log.info("ended", **report.as_json())
        return report

    async def _unless_at_once(self, task: asyncio.Task[None]) -> None:
        """Wait for a task, but not beyond the drain's limit or a second signal."""
        at_once = asyncio.create_task(self._at_once.wait())
        await asyncio.wait((task, at_once), return_when=asyncio.FIRST_COMPLETED)
        at_once.cancel()
        if task.done():
            await task

    async def _run(self, producer: IdempotentProducer) -> None:
        produce = self._produce
        if produce.create_topic and await create_topic(
            self._kafka,
            produce.topic,
            partitions=produce.partitions,
            replication_factor=produce.replication_factor,
        ):
            _log.info("topic created", topic=produce.topic, partitions=produce.partitions)
        await producer.start()
        self._started = True
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read())
            tasks.create_task(self._send(producer))

    def _report(self, producer: IdempotentProducer) -> DaemonReport:
        counts = producer.statistics()
        return DaemonReport(
            name=producer.name,
            topic=self._produce.topic,
            accepted=counts.persisted + counts.not_persisted + counts.possibly_persisted,
            persisted=counts.persisted,
            not_persisted=counts.not_persisted,
            possibly_persisted=counts.possibly_persisted,
        )

    def _listen(self) -> Callable[[], None]:
        """Turn signals into a stop; gives back what undoes it."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, self._on_signal, number)

        def undo() -> None:
            for number in signals:
                loop.remove_signal_handler(number)

        return undo

    def _on_signal(self, number: signal.Signals) -> None:
        _log.info("stopping", signal=signal.Signals(number).name)
        if self._hurry.is_set() or not self._started:
            _log.warning("ending at once")
            self._at_once.set()
            return
        self._hurry.set()
        self._source.stop()
        limit_s = self._produce.drain_timeout.total_seconds()
        asyncio.get_running_loop().call_later(limit_s, self._at_once.set)

    async def _read(self) -> None:
        delay_s = self._produce.send_delay.total_seconds()
        loop = asyncio.get_running_loop()
        async for event in self._source.events():
            await self._line.put((loop.time() + delay_s, event))
        await self._line.put(None)

    async def _send(self, producer: IdempotentProducer) -> None:
        loop = asyncio.get_running_loop()
        topic = self._produce.topic
        while (entry := await self._line.get()) is not None:
            due_s, event = entry
            wait_s = due_s - loop.time()
            if wait_s > 0 and not self._hurry.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), wait_s)
            record = event.record
            delivery = await producer.send(topic, record.value, record.key, record.headers)
            delivery.add_done_callback(_log_failure)


def _log_failure(delivery: Delivery) -> None:
    if not delivery.cancelled():
        outcome = delivery.result()
        if not isinstance(outcome, Persisted):
            _log.warning(
                "event not surely persisted", outcome=type(outcome).__name__, reason=outcome.reason
            )
