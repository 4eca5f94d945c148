"""What a producer counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sequitur.producer.journal.journal import JournalStatistics
    from sequitur.producer.quota.gate import QuotaStatistics


@dataclass(frozen=True, slots=True)
class ProducerStatistics:
    """The counts of a producer since it was started, at one moment.

    Attributes:
        accepted: Events that were given an event id.
        recovered: Events that a journal held from a former run, to be sent again. They are in the
            outcomes, too.
        persisted: Events whose outcome was `Persisted`.
        not_persisted: Accepted or recovered events whose outcome was `NotPersisted`.
        possibly_persisted: Events whose outcome was `PossiblyPersisted`.
        buffered_bytes: Bytes of the accepted events that are held now, uncompressed.
        batches_in_flight: Batches that have a sequence and no final answer now.
        batches_sent: Attempts to send a batch.
        batches_retried: Those of them that were not the first.
        bytes_sent: Bytes of those attempts, compressed.
        batches_split: Batches that a broker refused and that were halved.
        renewals: How often a partition went on under another producer id or epoch.
        requests: Produce requests written.
        unheard: Events that are not, or not surely, in the log, whose delivery or ticket is gone
            before anybody looked at it; told once a minute, by topic and reason. 0 with
            `on_given_up`, which is told of each.
        journal: What the journal holds and has done; None without one.
        quota: What backlog quotas did to sends; None unless `backlog_quota` is set.
    """

    accepted: int
    recovered: int
    persisted: int
    not_persisted: int
    possibly_persisted: int
    buffered_bytes: int
    batches_in_flight: int
    batches_sent: int
    batches_retried: int
    bytes_sent: int
    batches_split: int
    renewals: int
    requests: int
    unheard: int
    journal: JournalStatistics | None
    quota: QuotaStatistics | None


NOTHING_COUNTED: Final = ProducerStatistics(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, None, None)


@dataclass(slots=True)
class Counters:
    """The same while they grow; see `ProducerStatistics`."""

    persisted: int = 0
    not_persisted: int = 0
    possibly_persisted: int = 0
    batches_sent: int = 0
    batches_retried: int = 0
    bytes_sent: int = 0
    batches_split: int = 0
    renewals: int = 0
    requests: int = 0
