"""For tests of topologies: no broker, no Spark and no Kafka client is needed, nor loaded."""

from sequitur.consumer.topology import (
    AckedEvent,
    DeadLetteredEvent,
    EventValues,
    FailedEvent,
    FailReason,
    OutputRecord,
    ProcessSettings,
    StepKind,
    TopologyTester,
    TreeFailure,
    TreeStep,
    TupleTree,
)

__all__ = [
    "AckedEvent",
    "DeadLetteredEvent",
    "EventValues",
    "FailReason",
    "FailedEvent",
    "OutputRecord",
    "ProcessSettings",
    "StepKind",
    "TopologyTester",
    "TreeFailure",
    "TreeStep",
    "TupleTree",
]
