"""The daemon's report at its end, and its counts while it runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sequitur.producer._statistics import ProducerStatistics
    from sequitur.producer.daemon.health import HealthSnapshot
    from sequitur.producer.sources import SourceStatistics

DONE: Final = 0
NOT_ALL_SENT: Final = 1
FAILED: Final = 3


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
        possibly_persisted: It is unknown whether they are.
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
        """Return the report of a producer that is closed."""
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
        """Return the report as a JSON object."""
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
