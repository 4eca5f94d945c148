"""What both documents of a step hold: the staged one, and the one that says what was decided."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sequitur.consumer.step_log.totals import Totals
from sequitur.consumer.time.clock import EventClock, SourcePartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sequitur.consumer.step_log.entry import StepEntry
    from sequitur.consumer.step_log.staged import StagedStep


class StepKind(StrEnum):
    """What made the step."""

    BATCH = "batch"
    TICK = "tick"
    DRAIN = "drain"
    RESET = "reset"


def shared_document(step: StagedStep | StepEntry) -> dict[str, Any]:
    """Return the fields of either as JSON values."""
    return {
        "step": step.step,
        "kind": step.kind.value,
        "batch_id": step.batch_id,
        "previous_frontier_ms": step.previous_frontier_ms,
        "clock": step.clock.to_document(),
        "staged": asdict(step.staged),
        "owner": step.owner,
        "source": step.source,
        "planned": [[*partition, offset] for partition, offset in sorted(step.planned.items())],
        "topics": dict(step.topics),
        "lost": [
            {"topic": where.topic, "partition": where.partition, "first": first, "end": end}
            for where, (first, end) in sorted(step.lost.items())
        ],
    }


def shared_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """Read `shared_document` back."""
    return {
        "step": document["step"],
        "kind": StepKind(document["kind"]),
        "batch_id": document["batch_id"],
        "previous_frontier_ms": document["previous_frontier_ms"],
        "clock": EventClock.from_document(document["clock"]),
        "staged": Totals(**document["staged"]),
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
    }
