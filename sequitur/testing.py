"""For tests of topologies and of reorder jobs: no broker and no Spark is needed.

Of topologies alone neither a Kafka client nor Arrow is loaded, either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sequitur.base.extras import load
from sequitur.consumer.topology import (
    AckedEvent,
    EventValues,
    FailedEvent,
    FailReason,
    ProcessSettings,
    TopologyTester,
    TransactionTester,
    TreeFailure,
)
from sequitur.consumer.topology.engine.plan import OutputRecord
from sequitur.consumer.topology.tester.tester import DeadLetteredEvent
from sequitur.consumer.topology.tester.transaction_tester import FailedTry
from sequitur.consumer.topology.tester.tuple_trees import StepKind, TreeStep, TupleTree

if TYPE_CHECKING:
    from sequitur.pipelines.local.tester import ReorderedRecord, ReorderTester

__all__ = [
    "AckedEvent",
    "DeadLetteredEvent",
    "EventValues",
    "FailReason",
    "FailedEvent",
    "FailedTry",
    "OutputRecord",
    "ProcessSettings",
    "ReorderTester",
    "ReorderedRecord",
    "StepKind",
    "TopologyTester",
    "TransactionTester",
    "TreeFailure",
    "TreeStep",
    "TupleTree",
]


def __getattr__(name: str) -> Any:
    if name not in {"ReorderTester", "ReorderedRecord"}:
        raise AttributeError(name)
    return getattr(load("sequitur.pipelines.local.tester", "ReorderTester"), name)
