"""A broker in a few lines, with Kafka's rules of idempotence: the oracle of the sequencer's tests.

What it keeps of one producer id on one partition, and what it answers, is what Kafka's
ProducerStateManager and ProducerAppendInfo do; the network in front of it can lose, delay and
break whatever a real one can.

A batch is appended locally before it is replicated, as in Kafka's ReplicaManager: until
`replicate` it may be gone again with the next leader (`move_leader`), and whatever the broker
answers meanwhile says nothing of that (DelayedProduce).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from sequitur.kafka.error_codes import Answer
from sequitur.kafka.record_format import following
from sequitur.producer.delivery.sequencer import WINDOW

if TYPE_CHECKING:
    from sequitur.kafka.identity import Identity

_Snapshot: TypeAlias = "tuple[int, int | None, int, tuple[tuple[int, int, int], ...]]"


@dataclass(frozen=True)
class Request:
    """A batch on the wire."""

    identity: Identity
    base_sequence: int
    records: tuple[int, ...]

    @property
    def last_sequence(self) -> int:
        return following(self.base_sequence, len(self.records) - 1)


@dataclass
class ModelBroker:
    """One partition of one broker."""

    log: list[int] = field(default_factory=list)
    producer_id: int | None = None
    epoch: int = -1
    cached: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    bad: set[tuple[int, ...]] = field(default_factory=set)
    _before: list[_Snapshot] = field(default_factory=list)

    def append(self, request: Request) -> tuple[Answer, int | None]:
        """Take a batch locally, or say why not; with its base offset.

        What is in a batch is looked at before who sent it, as in Kafka's UnifiedLog: one that is
        `bad` stays so, whether an earlier attempt got in or not.
        """
        if request.records in self.bad:
            return Answer.TOO_LARGE, None
        identity = request.identity
        before = (len(self.log), self.producer_id, self.epoch, tuple(self.cached))
        if identity.producer_id != self.producer_id:
            self._accept_first(request)
        elif identity.epoch < self.epoch:
            return Answer.FENCED, None
        elif identity.epoch > self.epoch:
            if request.base_sequence != 0:
                return Answer.OUT_OF_ORDER, None
            self._accept_first(request)
        else:
            for first, last, offset in self.cached:
                if (first, last) == (request.base_sequence, request.last_sequence):
                    return Answer.PERSISTED, offset
            if self.cached and request.base_sequence != following(self.cached[-1][1], 1):
                return Answer.OUT_OF_ORDER, None
        self._before.append(before)
        self.cached.append((request.base_sequence, request.last_sequence, len(self.log)))
        self.log.extend(request.records)
        return Answer.PERSISTED, self.cached[-1][2]

    def replicate(self) -> None:
        self._before.clear()

    def move_leader(self, kept: int) -> None:
        """A replica leads that has only so many of the batches that were not yet replicated."""
        if kept < len(self._before):
            length, self.producer_id, self.epoch, cached = self._before[kept]
            del self.log[length:]
            self.cached.clear()
            self.cached.extend(cached)
        self.replicate()

    def restart(self) -> None:
        """A clean restart: the snapshot holds a producer's last batch only."""
        self.replicate()
        while len(self.cached) > 1:
            self.cached.popleft()

    def forget(self) -> None:
        """The producer's state expires; the log stays."""
        self.replicate()
        self.producer_id, self.epoch = None, -1
        self.cached.clear()

    def describe(self, identity: Identity) -> int | None:
        """The last sequence it has of an identity, once that is replicated."""
        self.replicate()
        if (identity.producer_id, identity.epoch) != (self.producer_id, self.epoch):
            return None
        return self.cached[-1][1]

    def _accept_first(self, request: Request) -> None:
        self.producer_id, self.epoch = request.identity.producer_id, request.identity.epoch
        self.cached.clear()
