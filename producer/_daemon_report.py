"""What the daemon tells of itself: at its end, and to machines while it runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from producer._health import HealthSnapshot
    from producer._statistics import ProducerStatistics
    from producer.sources import SourceStatistics

DONE: Final = 0
NOT_ALL_SENT: Final = 1
FAILED: Final = 3


@dataclass(frozen=True, slots=True)
class DaemonReport:
    """What became of the events of one run; `accepted` is the sum of the next three.

    Attributes:
        name: The producer's name in the event ids.
        topic: Where they went.
        accepted: Events that were given to the producer.
        persisted: In the log.
        not_persisted: Not in the log, nor ever.
        possibly_persisted: Nobody knows.
        dead_lettered: Put into the dead-letter file, before they were accepted or after.
        error: Why the source ended, if it was not at its end.
    """

    name: str
    topic: str
    accepted: int
    persisted: int
    not_persisted: int
    possibly_persisted: int
    dead_lettered: int
    error: str | None = None

    @classmethod
    def of(
        cls,
        counts: ProducerStatistics,
        *,
        name: str,
        topic: str,
        dead_lettered: int,
        error: str | None,
    ) -> DaemonReport:
        """The report of a producer that is closed."""
        return cls(
            name=name,
            topic=topic,
            accepted=counts.persisted + counts.not_persisted + counts.possibly_persisted,
            persisted=counts.persisted,
            not_persisted=counts.not_persisted,
            possibly_persisted=counts.possibly_persisted,
            dead_lettered=dead_lettered,
            error=error,
        )

    @property
    def exit_status(self) -> int:
        """What `produce-events` ends with: see `producer._cli`."""
        if self.error is not None:
            return FAILED
        return NOT_ALL_SENT if self.not_persisted or self.possibly_persisted else DONE

    def as_json(self) -> dict[str, Any]:
        """The report as a JSON object."""
        return asdict(self)


def health_snapshot(
    unready: Mapping[str, str],
    producer: ProducerStatistics,
    source: SourceStatistics,
    *,
    dead_lettered: int,
) -> HealthSnapshot:
    """The daemon's state under the names of its metrics."""
    from producer._health import HealthSnapshot  # noqa: PLC0415 - imports a web server

    return HealthSnapshot(
        unready=unready,
        counts={
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
            "source_left_behind_bytes": source.left_behind_bytes,
            "source_files_unreadable": source.files_unreadable,
            "http_requests_without_room": source.requests_without_room,
            "buffered_bytes": producer.buffered_bytes,
            "batches_in_flight": producer.batches_in_flight,
        },
    )
