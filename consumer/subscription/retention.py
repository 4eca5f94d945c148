"""What of a partition may be deleted: what all subscriptions have acked, less what is retained.

The rule is that of Pulsar's ManagedLedgerImpl, of which this is the loop over single messages
instead of ledgers: from the oldest on, a message that all durable subscriptions have acked goes
if it is older than the retention time *or* if what remains behind it has the retention size still.
The first that is neither stays, and all behind it. So an acked message is kept while it is within
both limits; -1 is a limit that nothing exceeds, and with 0 and 0 everything exceeds both. What is
not acked counts to the size, and is never deleted.

Here it differs: Pulsar deletes the messages of a topic without any subscription, as if all had
acked them. A Kafka topic has readers that are in no registry, so nothing of it is deleted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sequitur.consumer.subscription.policies import Retention


class PartitionPlan(
    msgspec.Struct, frozen=True, rename={"size_bytes": "bytesEstimate", "held_by": "heldBy"}
):
    topic: str
    partition: int
    before: int  # the first existing offset
    after: int  # the first offset that has to stay
    acked: int  # the first offset that some subscription has not acked
    records: int  # how many offsets are deleted
    size_bytes: int  # their bytes, estimated
    held_by: Holder | None  # why the next offset stays; None if there is none
    holder: str | None = None  # the name of the subscription or group that needs it

    @property
    def deletes(self) -> bool:
        return self.after > self.before


class Holder(StrEnum):
    SUBSCRIPTION = "subscription"
    """A subscription has not acked the next message."""
    RETENTION = "retention"
    """All have acked the next message, and it is retained."""
    GROUP = "group"
    """A consumer group that is no subscription has not committed the next message."""
    TOPIC = "topic"
    """The topic's own retention deletes unacked messages."""
    NO_SUBSCRIPTION = "no subscription"
    """There is no subscription."""


@dataclass(frozen=True, slots=True)
class PartitionLog:
    topic: str
    partition: int
    start: int  # the first existing offset
    end: int  # the offset behind the last one
    size_bytes: int
    # the first offset whose timestamp is within the retention time; `end` if none is
    young_from: int

    def bytes_before(self, offset: int) -> int:
        """Return how many bytes lie before an offset, as if all records had the same size."""
        if self.end <= self.start:
            return 0
        return self.size_bytes * (min(offset, self.end) - self.start) // (self.end - self.start)

    def offset_with_bytes_behind(self, size_bytes: int) -> int:
        """Return the last offset with at least so many bytes from it to the end."""
        span = self.end - self.start
        if size_bytes <= 0 or not span:
            return self.end
        if size_bytes >= self.size_bytes:
            return self.start
        return self.end - -(-size_bytes * span // self.size_bytes)


def plan_partition(
    log: PartitionLog, acked: Mapping[str, int], retention: Retention
) -> PartitionPlan:
    if not acked:
        return _plan(log, log.start, log.start, Holder.NO_SUBSCRIPTION, None)
    slowest = min(sorted(acked), key=acked.__getitem__)
    deletable = min(max(acked[slowest], log.start), log.end)
    exceeded = max(_expired(log, retention), _over_size(log, retention))
    after = min(deletable, exceeded)
    if after == log.end:
        return _plan(log, after, deletable, None, None)
    if after == deletable:
        return _plan(log, after, deletable, Holder.SUBSCRIPTION, slowest)
    return _plan(log, after, deletable, Holder.RETENTION, None)


def held_back(plan: PartitionPlan, offset: int, why: Holder, holder: str | None) -> PartitionPlan:
    """Return a plan that keeps all messages from an offset on, for another reason."""
    if offset >= plan.after:
        return plan
    after = max(offset, plan.before)
    share = (after - plan.before) / plan.records if plan.records else 0.0
    return replace(
        plan,
        after=after,
        records=after - plan.before,
        size_bytes=int(plan.size_bytes * share),
        held_by=why,
        holder=holder,
    )


def _expired(log: PartitionLog, retention: Retention) -> int:
    """Return the offset before which all messages are older than the retention time."""
    if retention.time_s is None:
        return log.start
    return log.end if retention.time_s == 0 else log.young_from


def _over_size(log: PartitionLog, retention: Retention) -> int:
    """Return the offset before which all messages exceed the retention size."""
    if retention.size_bytes is None:
        return log.start
    return log.offset_with_bytes_behind(retention.size_bytes)


def _plan(
    log: PartitionLog, after: int, acked: int, held_by: Holder | None, holder: str | None
) -> PartitionPlan:
    return PartitionPlan(
        topic=log.topic,
        partition=log.partition,
        before=log.start,
        after=after,
        acked=acked,
        records=after - log.start,
        size_bytes=log.bytes_before(after),
        held_by=held_by,
        holder=holder,
    )
