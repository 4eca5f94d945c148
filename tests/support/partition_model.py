"""A partition and its producers, with Kafka's rules: what `fake_cluster` has behind its brokers.

Where Kafka says so (4.0's source):

- A batch whose producer id is not known is taken with whatever sequence it has; of a known epoch
  only what follows; a newer epoch begins at 0; an older one is refused (47); all else is out of
  order (45): `ProducerAppendInfo.checkProducerEpoch`, `checkSequence`.
- Sequences count modulo 2^31, and a batch may cross that: `ProducerAppendInfo.inSequence`,
  `DefaultRecordBatch.incrementSequence`.
- A batch with the epoch, first and last sequence of one of the last five is answered as that one
  was, before any other check: `UnifiedLog.analyzeAndValidateProducerState`,
  `ProducerStateEntry.findDuplicateBatch`. acks=all waits for the end of that one, too:
  `ReplicaManager.appendRecords` takes its last offset for the required one.
- With acks=all an answer comes once the high watermark has reached the batch
  (`DelayedProduce.tryComplete`, `Partition.checkEnoughReplicasReachOffset`); a leader that leads no
  longer answers NOT_LEADER_OR_FOLLOWER, and one that waits too long REQUEST_TIMED_OUT, although it
  has appended (`DelayedProduce`). What is not replicated may be gone with the next leader.
- A replica that is cut or restarted has its producers from the last snapshot and the log behind it:
  of a producer the last batch, or more (`ProducerStateManager.truncateAndReload`, `writeSnapshot`,
  `UnifiedLog.rebuildProducerState`).
- A new leader's high watermark lags at first: ListOffsets then answers OFFSET_NOT_AVAILABLE, and
  Fetch with less than was there (`Partition.fetchOffsetForTimestamp`).
- A broker that restarts knows a producer by the log, and by snapshots of what the log still has
  (`LogLoader.recoverLog`, tried on 4.3).
- A producer is forgotten by its newest record's timestamp
  (`ProducerStateManager.isProducerExpired`), and not since its records were deleted
  (`onLogStartOffsetIncremented`). The log begins nowhere above the high watermark
  (`UnifiedLog.maybeIncrementLogStartOffset`).
- DescribeProducers tells what the leader has appended, replicated or not
  (`ReplicaManager.activeProducerState`, `UnifiedLog.activeProducers`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from sequitur.kafka.record_batch import Stamp, count_of, records_of
from sequitur.kafka.record_format import following

CACHED: Final = 5
OUT_OF_ORDER: Final = 45
INVALID_EPOCH: Final = 47


@dataclass(frozen=True, slots=True)
class Stored:
    """A batch of the log."""

    stamp: Stamp
    offset: int
    raw: bytes
    rows: tuple[bytes | None, ...]

    @property
    def end(self) -> int:
        """The offset behind its last record."""
        return self.offset + len(self.rows)


@dataclass(frozen=True, slots=True)
class Producer:
    """What is kept of a producer id: its epoch and last batches (first, last, end offset)."""

    epoch: int
    cached: tuple[tuple[int, int, int], ...]
    newest_s: float

    @property
    def last(self) -> int:
        return self.cached[-1][1]


@dataclass(slots=True)
class PartitionModel:
    """One partition.

    Attributes:
        leader: The broker that leads it.
        batches: The leader's log; nothing that was replicated ever goes, but see `lose`.
        start: Where the log begins for readers.
        replicated: The high watermark.
        shown: Where the leader says the high watermark is.
        producers: By producer id.
    """

    leader: int = 0
    batches: list[Stored] = field(default_factory=list)
    start: int = 0
    replicated: int = 0
    shown: int = 0
    producers: dict[int, Producer] = field(default_factory=dict)
    _before: list[dict[int, Producer]] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The offset behind the leader's last record."""
        return self.batches[-1].end if self.batches else 0

    @property
    def lags(self) -> bool:
        """Whether a new leader does not know the high watermark yet."""
        return self.shown < self.replicated

    def append(self, raw: bytes, now_s: float) -> tuple[int, int]:
        """Take a batch; the error code, and the offset that has to be replicated."""
        stamp, count = Stamp.of(raw), count_of(raw)
        first, last = stamp.base_sequence, following(stamp.base_sequence, count - 1)
        known = self.producers.get(stamp.producer_id)
        cached: tuple[tuple[int, int, int], ...] = ()
        if known is not None and known.epoch == stamp.epoch:
            for had in known.cached:
                if had[:2] == (first, last):
                    return 0, had[2]
            if first != following(known.last, 1):
                return OUT_OF_ORDER, -1
            cached = known.cached
        elif known is not None and stamp.epoch < known.epoch:
            return INVALID_EPOCH, -1
        elif known is not None and first != 0:
            return OUT_OF_ORDER, -1
        self._before.append(dict(self.producers))
        rows = tuple(record.value for record in records_of(raw))
        self.batches.append(Stored(stamp, self.end, raw, rows))
        cached = (*cached, (first, last, self.end))[-CACHED:]
        self.producers[stamp.producer_id] = Producer(stamp.epoch, cached, now_s)
        return 0, self.end

    def replicate(self, most: int | None = None) -> None:
        """All in-sync replicas have so many more batches; or all, without a number."""
        count = len(self._before) if most is None else min(most, len(self._before))
        del self._before[:count]
        self.replicated = self.shown = self._end_of(len(self.batches) - len(self._before))

    def move(self, leader: int, kept: int, shown: int | None = None) -> None:
        """Another replica leads, which has so many of the batches that were not replicated.

        Args:
            leader: The broker that leads now.
            kept: How many.
            shown: What it takes for the high watermark at first.
        """
        self.leader = leader
        if kept < len(self._before):
            self.producers = self._before[kept]
            del self.batches[len(self.batches) - len(self._before) + kept :]
            del self._before[kept:]
        self.shown = self.replicated if shown is None else min(shown, self.replicated)

    def shorten_memory(self) -> None:
        """Producers come from a snapshot: of each only the last batch is known."""
        for producer_id, one in self.producers.items():
            self.producers[producer_id] = Producer(one.epoch, one.cached[-1:], one.newest_s)

    def forget(self, now_s: float, expiry_s: float) -> None:
        """Forget producers that have sent nothing for so long."""
        for known in (self.producers, *self._before):
            for producer_id in [p for p, one in known.items() if now_s - one.newest_s >= expiry_s]:
                del known[producer_id]

    def restart(self) -> None:
        """Brokers restart: of producers they know those whose batches are in the log."""
        known = {one.stamp.producer_id for one in self.batches if one.end > self.start}
        for producer_id in self.producers.keys() - known:
            del self.producers[producer_id]

    def delete_to(self, offset: int) -> None:
        """Retention, or DeleteRecords: readers see nothing before an offset."""
        self.start = max(self.start, min(offset, self.replicated))

    def lose(self, kept: int) -> None:
        """An unclean election: only so many batches are left, acknowledged or not."""
        del self.batches[kept:]
        self._before.clear()
        self.replicated = self.shown = self.end
        self.start = min(self.start, self.end)
        self.producers.clear()
        for one in self.batches:
            ends = one.stamp.base_sequence, following(one.stamp.base_sequence, len(one.rows) - 1)
            of = Producer(one.stamp.epoch, ((*ends, one.end),), 0.0)
            self.producers[one.stamp.producer_id] = of

    def rows(self) -> list[bytes | None]:
        """All rows that were replicated, with those that retention has taken."""
        return [row for one in self.batches if one.end <= self.replicated for row in one.rows]

    def _end_of(self, count: int) -> int:
        return self.batches[count - 1].end if count else 0
