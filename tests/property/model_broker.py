"""A broker in a few lines, with Kafka's rules of idempotence: the oracle of the sequencer's tests.

What it keeps of one producer id on one partition, and what it answers, is what Kafka's
ProducerStateManager and ProducerAppendInfo do; the network in front of it can lose, delay and
break whatever a real one can.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from producer._answers import Answer
from producer._sequencer import WINDOW
from producer._slot import Identity, following


@dataclass(frozen=True)
class Request:
    """A batch on the wire."""

    identity: Identity
    base_sequence: int
    records: tuple[int, ...]

    @property
    def last_sequence(self) -> int:
        """The last sequence number it takes."""
        return following(self.base_sequence, len(self.records) - 1)


@dataclass
class ModelBroker:
    """One partition of one broker."""

    log: list[int] = field(default_factory=list)
    producer_id: int | None = None
    epoch: int = -1
    cached: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def append(self, request: Request) -> tuple[Answer, int | None]:
        """Take a batch, or say why not; with its base offset."""
        identity = request.identity
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
        self.cached.append((request.base_sequence, request.last_sequence, len(self.log)))
        self.log.extend(request.records)
        return Answer.PERSISTED, self.cached[-1][2]

    def restart(self) -> None:
        """A clean restart: the snapshot holds a producer's last batch only."""
        while len(self.cached) > 1:
            self.cached.popleft()

    def forget(self) -> None:
        """The producer's state expires; the log stays."""
        self.producer_id, self.epoch = None, -1
        self.cached.clear()

    def describe(self, identity: Identity) -> int | None:
        """The last sequence it has of an identity."""
        if (identity.producer_id, identity.epoch) != (self.producer_id, self.epoch):
            return None
        return self.cached[-1][1]

    def _accept_first(self, request: Request) -> None:
        self.producer_id, self.epoch = request.identity.producer_id, request.identity.epoch
        self.cached.clear()
