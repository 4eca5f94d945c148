"""The daemon `produce-events`: it takes events from a source and sends them, until told to stop.

It runs in three phases:

1. *Start.* The topic is created, and the producer gets its producer id. While Kafka is away, both
   are retried. A signal ends this phase at once: no event was accepted.
2. *Run.* The source gives its events to the intake. When it ends by itself, all of them are sent.
3. *Drain.* The first SIGINT, SIGTERM or SIGHUP stops the source. Accepted events are sent, and the
   daemon waits for the answers up to `drain_timeout` from the signal. A second signal ends that at
   once.

In each case the report accounts for all accepted events.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from sequitur.base.log import Logger
from sequitur.base.retry import Backoff, Retry, any_of
from sequitur.base.units import parse_address
from sequitur.errors import ProducerError, RetriableError, StoppingError
from sequitur.producer._client import IdempotentProducer
from sequitur.producer.daemon.intake import GivenUpEvents, ProducerIntake, position_and_mark
from sequitur.producer.daemon.log import configure_logging
from sequitur.producer.daemon.settings import ProduceSettings, dead_letter_file
from sequitur.producer.sources._dead_letter import DeadLetterFile
from sequitur.producer.sources._registry import check_source, make_source

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping
    from pathlib import Path

    from sequitur.kafka.settings import KafkaSettings
    from sequitur.producer._running import ProducerStatistics
    from sequitur.producer._settings import ProducerSettings
    from sequitur.producer.daemon.health import HealthSnapshot
    from sequitur.producer.sources._source import Source, SourceStatistics

DONE: Final = 0
NOT_ALL_SENT: Final = 1
FAILED: Final = 3
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NO_TIME: Final = timedelta(milliseconds=100)
_COMPLAIN_EVERY_S: Final = 10.0
_LOOK_AFTER_S: Final = 0.5
_LOOK_S: Final = 1.0
_log = Logger(__name__)
_TOPIC_RETRY: Final = Retry(
    backoff=Backoff(initial_ms=1_000, maximum_ms=1_000, jitter=0),
    tell=lambda why, _: _log.warning("topic not created yet", reason=why),
)


def run_daemon(
    kafka: KafkaSettings, producer: ProducerSettings, produce: ProduceSettings
) -> DaemonReport:
    """Run the daemon until its source ends or a signal comes; logs go to standard error.

    Raises:
        BrokerError: The cluster refused the login or the topic.
        SourceError: The source cannot be made of these settings, or read.
    """
    configure_logging(produce.log_format)
    check_source(produce)
    return asyncio.run(_Daemon(kafka, producer, produce).run())


class _Daemon:
    """One run. `_stopping` is set by the first signal, `_at_once` by the second or at the limit."""

    def __init__(
        self, kafka: KafkaSettings, producer: ProducerSettings, produce: ProduceSettings
    ) -> None:
        self._kafka = kafka
        self._produce = produce
        self._source: Source = make_source(produce, max_event_bytes=producer.max_request_size)
        self._dead_letters = _open_dead_letters(
            dead_letter_file(produce, producer), produce.dead_letter_limit
        )
        self._dead_letters.skip_known_ids()
        self._given_up = GivenUpEvents(self._dead_letters, self._source.name)
        self._producer = IdempotentProducer(kafka, producer, on_given_up=self._given_up.keep)
        self._has_journal = producer.journaling != "none"
        self._stopping = asyncio.Event()
        self._at_once = asyncio.Event()
        self._beside: list[asyncio.Task[None]] = []
        self._started = False
        self._reading = False
        self._taking = False
        self._error: str | None = None

    async def run(self) -> DaemonReport:
        """Send until the source ends, or until all is sent after a signal."""
        async with AsyncExitStack() as stack:
            self._listen()
            stack.callback(self._listen_no_more)
            stack.callback(self._dead_letters.close)
            if self._produce.health is not None:
                await self._serve_health(stack, self._produce.health)
            _log.info("starting", topic=self._produce.topic, source=self._source.name)
            if not self._has_journal:
                _log.warning("no journal: unacknowledged events are lost with this process")
            self._beside += [asyncio.create_task(e) for e in (self._complain(), self._watch())]
            try:
                await self._unless_at_once(self._start())
                if self._started:
                    await self._unless_at_once(self._read())
                limit = self._produce.drain_timeout
                await self._unless_at_once(self._producer.close(limit))
            finally:
                await self._producer.close(_NO_TIME)
                for task in self._beside:
                    task.cancel()
        report = self._report()
        _log.info("ended", **report.as_json())
        return report

    async def _unless_at_once(self, part: Coroutine[Any, Any, None]) -> None:
        """Run a phase, but not beyond the drain's limit or a second signal."""
        task = asyncio.create_task(part)
        at_once = asyncio.create_task(self._at_once.wait())
        await asyncio.wait((task, at_once), return_when=asyncio.FIRST_COMPLETED)
        at_once.cancel()
        if task.done():
            await task
        else:
            task.cancel()

    async def _start(self) -> None:
        """Prepare all that the source needs to begin."""
        await self._producer.start()
        if self._produce.create_topic:
            creating = self._create_topic()
            if self._produce.topic in self._producer.recovered_topics():
                # The topic exists, and the journal takes events for it also while Kafka is away.
                self._beside.append(asyncio.create_task(self._unless_refused(creating)))
            else:
                await creating
        self._started = True

    async def _unless_refused(self, creating: Coroutine[Any, Any, None]) -> None:
        try:
            await creating
        except ProducerError as error:
            _log.warning("topic not created: it exists already", reason=str(error))

    async def _create_topic(self) -> None:
        from sequitur.kafka.admin import create_topic  # noqa: PLC0415 - imports a second Kafka client

        produce = self._produce

        async def create() -> bool:
            return await create_topic(
                self._kafka,
                produce.topic,
                partitions=produce.partitions,
                replication_factor=produce.replication_factor,
            )

        if await _TOPIC_RETRY.run_async(create, any_of(RetriableError)):
            _log.info("topic created", topic=produce.topic, partitions=produce.partitions)

    async def _read(self) -> None:
        """Run the source; when it ends by itself, send all that it gave."""
        intake = ProducerIntake(
            self._producer,
            self._produce.topic,
            self._source.name,
            self._dead_letters,
            self._stopping,
            journals=self._has_journal,
        )
        journaled = self._producer.recovered_position(self._source.name)
        position, mark = position_and_mark(journaled)
        self._dead_letters.skip_places_behind(mark)
        self._reading = True
        try:
            await intake.open()
            self._taking = True
            await self._source.run(intake, position)
        except StoppingError:
            return
        except (ProducerError, OSError) as error:
            if not self._at_once.is_set():  # else the producer was closed before it
                self._fail("the source failed", error)
            return
        finally:
            self._reading = self._taking = False
        if not self._stopping.is_set():
            _log.info("the source has ended", **self._on_its_way())
            await self._producer.flush()

    async def _watch(self) -> None:
        """End at once when the producer has failed: no event could be accepted."""
        self._fail("the producer failed", await self._producer.failure())
        self._at_once.set()

    def _fail(self, what: str, error: Exception) -> None:
        self._error = self._error or f"{what}: {error}"
        _log.error(what, reason=str(error))

    async def _complain(self) -> None:
        """Log what the daemon waits for: soon after its start, and then now and then."""
        from sequitur.kafka.broker_check import why_no_broker  # noqa: PLC0415 - rarely needed

        wait_s = _LOOK_AFTER_S
        while True:
            await asyncio.sleep(wait_s)
            wait_s = _COMPLAIN_EVERY_S
            if not self._started:
                reason = await why_no_broker(self._kafka, limit_s=_LOOK_S)
                servers = self._kafka.bootstrap_servers
                if not self._started:
                    _log.warning("no Kafka yet", bootstrap_servers=servers, reason=reason)
            elif not self._reading:
                _log.warning("waiting for answers", **self._on_its_way())

    def _on_its_way(self) -> dict[str, int]:
        counts = self._producer.statistics()
        return {
            "buffered_bytes": counts.buffered_bytes,
            "batches_in_flight": counts.batches_in_flight,
        }

    def _report(self) -> DaemonReport:
        return DaemonReport.of(
            self._producer.statistics(),
            name=self._producer.name,
            topic=self._produce.topic,
            dead_lettered=self._dead_letters.written,
            kept=self._kept(),
            has_journal=self._has_journal,
            error=self._error,
        )

    def _kept(self) -> int:
        """Return how many events are unanswered and in the journal, for the next start to send.

        Known once the producer is closed.
        """
        if not self._has_journal:
            return 0
        counts = self._producer.statistics()
        with_outcome = counts.persisted + counts.not_persisted + self._given_up.possibly_persisted
        return counts.accepted + counts.recovered - with_outcome

    async def _serve_health(self, stack: AsyncExitStack, address: str) -> None:
        from prometheus_client import CollectorRegistry  # noqa: PLC0415 - only with health

        from sequitur.producer.daemon import health  # noqa: PLC0415 - imports a web server

        heartbeat = await stack.enter_async_context(health.Heartbeat())
        registry = CollectorRegistry()
        registry.register(health.DaemonCollector(self._snapshot))
        application = health.health_application(self._snapshot, registry, heartbeat)
        host, port = parse_address(address)
        server = health.HealthServer(application, host, port)
        await stack.enter_async_context(server)
        _log.info("health", host=host, port=server.port)

    def _snapshot(self) -> HealthSnapshot:
        unready = {}
        if not self._started:
            unready["kafka"] = "it did not answer yet"
        elif not self._taking:
            why = self._producer.blocked_reason() or "the topic is not open yet"
            unready["source"] = why if self._reading else "it is read no more"
        elif (reason := self._producer.blocked_reason()) is not None:
            unready["producer"] = reason
        if self._stopping.is_set():
            unready["daemon"] = "it stops"
        return health_snapshot(
            unready,
            self._producer.statistics(),
            self._source.statistics(),
            dead_lettered=self._dead_letters.written,
        )

    def _listen(self) -> None:
        """Handle signals: stop the daemon."""
        for number in _SIGNALS:
            # A SIGHUP that was ignored at the start, as by nohup, stays so.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)

    def _listen_no_more(self) -> None:
        for number in _SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)

    def _on_signal(self, number: signal.Signals) -> None:
        _log.info("stopping", signal=signal.Signals(number).name)
        if self._stopping.is_set() or not self._started:
            _log.warning("ending at once. A further signal kills the process")
            self._at_once.set()
            self._listen_no_more()
        else:
            limit_s = self._produce.drain_timeout.total_seconds()
            asyncio.get_running_loop().call_later(limit_s, self._at_once.set)
        self._stopping.set()


@dataclass(frozen=True, slots=True)
class DaemonReport:
    """The outcomes of the events of one run.

    `accepted` and `recovered` together are the sum of the three after them, but for recovered
    events that were not even tried: those are kept.

    Attributes:
        name: The producer's name in the event ids.
        topic: Where they went.
        accepted: Events that were given to the producer in this run.
        recovered: Events that the journal held from an earlier run.
        persisted: In the log.
        not_persisted: Not in the log, now or ever.
        possibly_persisted: It is unknown whether they are in the log.
        kept: Without an answer, and in the journal: the next start sends them.
        dead_lettered: Put into the dead-letter file, before they were accepted or after.
        error: What failed, if something did.
        has_journal: Whether there is a journal.
    """

    name: str
    topic: str
    accepted: int
    recovered: int
    persisted: int
    not_persisted: int
    possibly_persisted: int
    kept: int
    dead_lettered: int
    error: str | None
    has_journal: bool

    @classmethod
    def of(
        cls,
        counts: ProducerStatistics,
        *,
        name: str,
        topic: str,
        kept: int,
        dead_lettered: int,
        error: str | None,
        has_journal: bool,
    ) -> DaemonReport:
        return cls(
            name=name,
            topic=topic,
            accepted=counts.accepted,
            recovered=counts.recovered,
            persisted=counts.persisted,
            not_persisted=counts.not_persisted,
            possibly_persisted=counts.possibly_persisted,
            kept=kept,
            dead_lettered=dead_lettered,
            error=error,
            has_journal=has_journal,
        )

    @property
    def exit_status(self) -> int:
        """What `produce-events` ends with: see `sequitur.producer.daemon.cli`."""
        if self.error is not None:
            return FAILED
        unsure = self.not_persisted or self.possibly_persisted
        return NOT_ALL_SENT if unsure and not self.has_journal else DONE

    def as_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "has_journal"}


def health_snapshot(
    unready: Mapping[str, str],
    producer: ProducerStatistics,
    source: SourceStatistics,
    *,
    dead_lettered: int,
) -> HealthSnapshot:
    """Return the daemon's state under the names of its metrics."""
    from sequitur.producer.daemon.health import HealthSnapshot  # noqa: PLC0415 - imports a web server

    counts: dict[str, float] = {
        "events_accepted": producer.accepted,
        "events_persisted": producer.persisted,
        "events_not_persisted": producer.not_persisted,
        "events_possibly_persisted": producer.possibly_persisted,
        "events_refused": dead_lettered,
        "batches_sent": producer.batches_sent,
        "batches_retried": producer.batches_retried,
        "batches_split": producer.batches_split,
        "sent_bytes": producer.bytes_sent,
        "identity_renewals": producer.renewals,
        "source_files_finished": source.files_finished,
        "source_files_lost": source.files_lost,
        "source_files_passed_over": source.files_passed_over,
        "source_left_behind_bytes": source.left_behind_bytes,
        "source_files_unreadable": source.files_unreadable,
        "source_hole_bytes": source.hole_bytes,
        "http_requests_without_room": source.requests_without_room,
        "buffered_bytes": producer.buffered_bytes,
        "batches_in_flight": producer.batches_in_flight,
    }
    if producer.journal is not None:
        counts |= {
            "events_recovered": producer.recovered,
            "journal_syncs": producer.journal.syncs,
            "journal_disk_bytes": producer.journal.disk_bytes,
            "journal_unacked_batches": producer.journal.unacked_batches,
        }
    if producer.quota is not None:
        counts |= {
            "backlog_quota_held": producer.quota.held,
            "backlog_quota_refused": producer.quota.refused,
        }
        if producer.quota.proximity is not None:
            counts["backlog_quota_ratio"] = producer.quota.proximity
    return HealthSnapshot(unready=unready, counts=counts)


def _open_dead_letters(path: Path, limit_bytes: int) -> DeadLetterFile:
    try:
        return DeadLetterFile(path, limit_bytes=limit_bytes)
    except OSError as error:
        raise ProducerError(f"the dead-letter file {path} cannot be written: {error}") from error
