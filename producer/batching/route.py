"""A topic and its partitions: the batches of each that take events, or wait to be cut."""

from __future__ import annotations

import enum
from collections import deque
from typing import TYPE_CHECKING, Any, NoReturn

from sequitur.kafka.partition import KeyPartitioner, StickyPartitioner
from sequitur.kafka.record_format import HEADER_SIZE
from sequitur.producer._claims import claim_of
from sequitur.producer.batching.batch import Batch, DatingEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.kafka.record_batch import Builder


class Route:
    """A topic: its queues, and how events are spread over them."""

    __slots__ = (
        "_most_batch_bytes",
        "batch_bytes",
        "keys",
        "known",
        "max_batch_bytes",
        "partitions",
        "queues",
        "sticky",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        queues: list[PartitionQueue],
        *,
        partitions: int,
        max_batch_bytes: int,
        batch_bytes: int,
        random: float,
        topic_id: bytes | None = None,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.queues = queues
        self.partitions = partitions
        self.known = Known.BEFORE
        self._most_batch_bytes = batch_bytes
        self.limit(max_batch_bytes)
        self.keys = KeyPartitioner(partitions)
        self.sticky = StickyPartitioner(partitions, random)

    def limit(self, max_batch_bytes: int) -> None:
        """Let no batch be larger than the topic takes."""
        self.max_batch_bytes = max_batch_bytes
        self.batch_bytes = min(self._most_batch_bytes, max_batch_bytes)

    def refuse(self, why: str) -> NoReturn:
        """Refuse an event by the topic's limit or partition count.

        Raises:
            OutdatedError: Brokers have to be asked for these again before the event is refused.
            ValueError: It is refused.
        """
        match self.known:
            case Known.BEFORE:
                raise OutdatedError(why)
            case Known.UNANSWERED:
                raise ValueError(
                    f"{why}, as brokers said when they last answered. They do not answer now: "
                    "send it again later"
                )
            case Known.NOW:
                raise ValueError(why)

    def refuse_partition(self, partition: object, chosen_by: str = "") -> NoReturn:
        """Refuse an event for a partition that is not known; raises as `refuse` does.

        Partitions are only added, so only a number above the last may come to be.
        """
        why = (
            f"{chosen_by or 'partition'} {partition}: "
            f"topic {self.topic} has 0 to {self.partitions - 1}"
        )
        if isinstance(partition, int) and partition >= self.partitions:
            self.refuse(why)
        raise ValueError(why)

    def resize(self, partitions: int, random: float) -> None:
        """Spread events over so many partitions from now on; their queues must exist."""
        self.partitions = partitions
        self.keys = KeyPartitioner(partitions)
        self.sticky = StickyPartitioner(partitions, random)


class Known(enum.Enum):
    """How sure a topic's limit and partition count are."""

    NOW = enum.auto()
    """Brokers gave them a moment ago."""
    BEFORE = enum.auto()
    """They gave them a while ago, and may give others when they are asked."""
    UNANSWERED = enum.auto()
    """They were asked again, and did not answer."""


class OutdatedError(Exception):
    """A limit or a partition count that brokers gave a while ago would refuse the event."""


class PartitionQueue:
    """Collect the events of one partition in batches: one is open, those before it are sealed.

    Only its own methods write its fields. What the accumulator does for every event is one call of
    `append` and one addition to the list `entries`; everything else is rare.
    """

    __slots__ = (
        "append",
        "claimed",
        "entries",
        "is_dated",
        "open",
        "owner",
        "partition",
        "sealed",
        "topic",
    )

    # adds a record to the open batch; returns None if the record does not fit, if no batch is open,
    # or if the open one is paused
    append: Callable[..., Any]
    # how many events the claims before the newest one have; plus the length of `entries` it is the
    # offset of the next record
    claimed: int
    # the entries of the open batch's newest claim: for each record that `append` took, the caller
    # adds the name that the owner has for the event
    entries: list[Any]
    is_dated: bool  # whether the open batch has the timestamps of its senders
    owner: object  # the owner of the newest claim; None before the first

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.open: Batch | None = None
        self.sealed: deque[Batch] = deque()
        self._close()

    @property
    def has_batch(self) -> bool:
        return bool(self.sealed) or self.open is not None

    @property
    def count(self) -> int:
        return self.claimed + len(self.entries)

    @property
    def open_bytes(self) -> int:
        """The size of the open batch; 0 without one."""
        if self.open is None:
            return 0
        assert self.open.builder is not None
        return self.open.builder.size() - HEADER_SIZE

    @property
    def is_paused(self) -> bool:
        """Whether the journal has all of the open batch, which the next event resumes."""
        return self.open is not None and self.append is _no_batch_takes

    def pause(self) -> None:
        """Have the next event call `resume` first."""
        self.append = _no_batch_takes

    def resume(self) -> None:
        assert self.open is not None
        assert self.open.builder is not None
        self.append = self.open.builder.append

    def start(self, batch: Batch, builder: Builder) -> None:
        assert self.open is None
        batch.builder = builder
        self.open = batch
        self.append = builder.append

    def claim(self, owner: object) -> list[Any]:
        assert self.open is not None
        claim = claim_of(owner)
        self.open.claims.append(claim)
        self.claimed += len(self.entries)
        self.owner = owner
        self.entries = claim.entries  # type: ignore[assignment]  # a list until it is compacted
        return self.entries

    def mark_dated(self) -> None:
        """Take note that the newest record has a timestamp of its sender."""
        if not self.is_dated:  # else an earlier record has marked the batch
            assert self.open is not None
            self.open.on_dating(DatingEvent.GIVEN)
            self.is_dated = True

    def seal(self) -> None:
        if self.open is not None:
            self.open.count = self.count
            self.open.size = self.open_bytes
            self.sealed.append(self.open)
            self.open = None
            self._close()

    def _close(self) -> None:
        self.append = _no_batch_takes
        self.owner = None
        self.entries = []
        self.claimed = 0
        self.is_dated = False

    def cut_sealed(self) -> list[Batch]:
        batches = list(self.sealed)
        self.sealed.clear()
        return batches

    def cut(self) -> list[Batch]:
        """Take out all batches, the open one too; the next event opens another."""
        self.seal()
        return self.cut_sealed()

    def pop(self, accepted_until_s: float) -> Batch | None:
        """Take out the oldest batch, sealed or open, if it was accepted until then."""
        if not self.sealed and self.open is not None:
            if self.open.accepted_at_s > accepted_until_s:
                return None
            self.seal()
        if self.sealed and self.sealed[0].accepted_at_s <= accepted_until_s:
            return self.sealed.popleft()
        return None


def _no_batch_takes(*_args: object) -> None:
    """Take the place of a builder's `append` while no batch takes records."""
