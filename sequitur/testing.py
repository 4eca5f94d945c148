"""For tests of topologies: no broker, no Spark and no Kafka client is needed, nor loaded."""

from sequitur.consumer.topology import (
    AckedEvent,
    EventValues,
    FailedEvent,
    TopologyTester,
)

__all__ = ["AckedEvent", "EventValues", "FailedEvent", "TopologyTester"]
