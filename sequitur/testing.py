"""For tests of topologies: no broker, no Spark and no Kafka client is needed, nor loaded."""

from sequitur.consumer.topology import (
    AckedEvent,
    DeadLetteredEvent,
    EventValues,
    FailedEvent,
    FailedTry,
    FailReason,
    OutputRecord,
    ProcessSettings,
    StepKind,
    TopologyTester,
    TransactionTester,
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
    "FailedTry",
    "OutputRecord",
    "ProcessSettings",
    "StepKind",
    "TopologyTester",
    "TransactionTester",
    "TreeFailure",
    "TreeStep",
    "TupleTree",
]
