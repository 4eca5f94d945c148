"""What both documents of a step hold: the staged one, and the one that says what was decided."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sequitur.consumer.step_log.partition_counts import PartitionCounts
from sequitur.consumer.step_log.step_format import STEP_FORMAT, check_format
from sequitur.consumer.step_log.totals import Totals
from sequitur.consumer.time.adaptive_delay import LearnedDelays
from sequitur.consumer.time.clock import EventClock
from sequitur.kafka.partition import SourcePartition

if TYPE_CHECKING:
    from collections.abc import Mapping


class StepKind(StrEnum):
    """What made the step."""

    BATCH = "batch"
    TICK = "tick"
    DRAIN = "drain"
    RESET = "reset"
    GROWTH = "growth"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is known of a step from its staging on, and stands in both of its documents.

    Attributes:
        step: Number of the step, from 0, without a gap.
        kind: What made it.
        batch_id: Spark's id of the newest micro-batch up to this step; -1 before the first.
        previous_frontier_ms: The frontier before; rows are late against this one.
        clock: The clocks after, with the frontier that this step releases up to.
        staged: Counts of the rows it read; nothing of them is released yet.
        learned: What the delays of this and the following step come from; None with a fixed delay.
        owner: Owner generation of the driver's life that logged it.
        source: Name of the folder with Spark's own checkpoint.
        planned: Where `batch_id` ends in each source partition, as Spark planned it: another try
            of that batch has to have the same.
        topics: Ids of the input topics that have been read, by name, where brokers give them ids.
        lost: Of each source partition that lost rows before they were read, the first offset of
            these and the one behind the last.
        counted: Of each source partition that it read, how many rows, and bytes of them.
        partition_counts: By how many partitions its rows, and all that were staged before, go to
            the output topic; None in what versions wrote that knew one number alone.
    """

    step: int
    kind: StepKind
    batch_id: int
    previous_frontier_ms: int
    clock: EventClock
    staged: Totals = field(default_factory=Totals)
    learned: LearnedDelays | None = None
    owner: int = 0
    source: str = "spark"
    planned: Mapping[SourcePartition, int] = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=dict)
    lost: Mapping[SourcePartition, tuple[int, int]] = field(default_factory=dict)
    counted: Mapping[SourcePartition, tuple[int, int]] = field(default_factory=dict)
    partition_counts: PartitionCounts | None = None

    def shared_document(self) -> dict[str, Any]:
        """Return these fields as JSON values, with the number of the format."""
        partitions = self.partition_counts
        planned = [[*partition, offset] for partition, offset in sorted(self.planned.items())]
        return {
            "format": STEP_FORMAT,
            "step": self.step,
            "kind": self.kind.value,
            "batch_id": self.batch_id,
            "previous_frontier_ms": self.previous_frontier_ms,
            "clock": self.clock.to_document(),
            "staged": asdict(self.staged),
            "learned": None if self.learned is None else self.learned.to_document(),
            "owner": self.owner,
            "source": self.source,
            "planned": planned,
            "topics": dict(self.topics),
            "lost": [
                {"topic": where.topic, "partition": where.partition, "first": first, "end": end}
                for where, (first, end) in sorted(self.lost.items())
            ],
            "counted": [[*where, *counts] for where, counts in sorted(self.counted.items())],
            "partition_counts": None if partitions is None else partitions.to_document(),
        }


def shared_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """Read `Step.shared_document` back."""
    check_format(document)
    learned, partitions = document["learned"], document.get("partition_counts")
    return {
        "step": document["step"],
        "kind": StepKind(document["kind"]),
        "batch_id": document["batch_id"],
        "previous_frontier_ms": document["previous_frontier_ms"],
        "clock": EventClock.from_document(document["clock"]),
        "staged": Totals(**document["staged"]),
        "learned": None if learned is None else LearnedDelays.from_document(learned),
        "owner": document["owner"],
        "source": document["source"],
        "planned": {
            SourcePartition(topic, partition): offset
            for topic, partition, offset in document["planned"]
        },
        "topics": document["topics"],
        "lost": {
            SourcePartition(one["topic"], one["partition"]): (one["first"], one["end"])
            for one in document["lost"]
        },
        "counted": {
            SourcePartition(topic, partition): (rows, size)
            for topic, partition, rows, size in document.get("counted", ())
        },
        "partition_counts": partitions and PartitionCounts.from_document(partitions),
    }
