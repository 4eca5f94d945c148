"""Topologies: bolts over the ordered stream, with each event tracked until its tree is done.

These are the names for users of topologies. The jobs import from the rooms: `api`, `settling`,
`engine`, `step` and `tester`.
"""

from sequitur.consumer.dead_letters import (
    DEAD_ATTEMPTS_HEADER,
    DEAD_COMPONENT_HEADER,
    DEAD_DETAIL_HEADER,
    DEAD_EVENT_TIME_HEADER,
    DEAD_HEADERS,
    DEAD_PATH_HEADER,
    DEAD_REASON_HEADER,
    DEAD_STREAM_HEADER,
    DEAD_TIME_HEADER,
    DEAD_TOPOLOGY_HEADER,
    FailReason,
)
from sequitur.consumer.topology._settings import Outputs, ProcessSettings
from sequitur.consumer.topology.api.bolt import (
    BaseBolt,
    BasicBolt,
    BatchBolt,
    Bolt,
    FunctionBolt,
    To,
    TopologyContext,
    bolt,
)
from sequitur.consumer.topology.api.builder import ComponentDeclarer, TopologyBuilder
from sequitur.consumer.topology.api.collector import BasicOutputCollector, OutputCollector, TaskId
from sequitur.consumer.topology.api.groupings import CustomStreamGrouping, Grouping, GroupingContext
from sequitur.consumer.topology.api.hooks import AckedEvent, EventHook, FailedEvent, TreeFailure
from sequitur.consumer.topology.api.stable_hash import stable_hash
from sequitur.consumer.topology.api.ticks import TICK_STREAM
from sequitur.consumer.topology.api.topology import Component, Topology
from sequitur.consumer.topology.api.tuple import (
    DEFAULT_STREAM,
    SYSTEM_COMPONENT,
    Event,
    EventValues,
    Place,
    Tuple,
)
from sequitur.consumer.topology.engine.plan import Ordering
from sequitur.consumer.topology.engine.targets import OutputRecord
from sequitur.consumer.topology.settling.outcomes import RetryPolicy
from sequitur.consumer.topology.tester.tester import DeadLetteredEvent, TopologyTester
from sequitur.consumer.topology.tester.transaction_tester import FailedTry, TransactionTester
from sequitur.consumer.topology.tester.tuple_trees import StepKind, TreeStep, TupleTree
from sequitur.consumer.topology.transactional.attempt import TransactionAttempt
from sequitur.consumer.topology.transactional.bolts import (
    BaseTransactionalBolt,
    BatchOutputCollector,
    Committer,
    TransactionContext,
)
from sequitur.consumer.topology.transactional.builder import (
    OrderedStreamSpout,
    TransactionalTopology,
    TransactionalTopologyBuilder,
)
from sequitur.consumer.topology.transactional.metadata_store import (
    FolderMetadataStore,
    MemoryMetadataStore,
    MetadataStore,
    RotatingTransactionalState,
)
from sequitur.consumer.topology.transactional.spouts import (
    MemoryOpaqueTransactionalSpout,
    MemoryTransactionalSpout,
    OpaquePartitionedEmitter,
    OpaquePartitionedTransactionalSpout,
    PartitionCoordinator,
    PartitionedEmitter,
    PartitionedTransactionalSpout,
    TransactionalCoordinator,
    TransactionalEmitter,
    TransactionalSpout,
)
from sequitur.errors import (
    BoltError,
    BoltStateError,
    BoltTimeoutError,
    DoubleAckError,
    EmitError,
    FailBatch,
    ForeignTupleError,
    TopologyBuildError,
    TopologyError,
    TransactionError,
    TransactionMetadataError,
    TransactionOrderError,
    UngroupableValueError,
)

__all__ = [
    "DEAD_ATTEMPTS_HEADER",
    "DEAD_COMPONENT_HEADER",
    "DEAD_DETAIL_HEADER",
    "DEAD_EVENT_TIME_HEADER",
    "DEAD_HEADERS",
    "DEAD_PATH_HEADER",
    "DEAD_REASON_HEADER",
    "DEAD_STREAM_HEADER",
    "DEAD_TIME_HEADER",
    "DEAD_TOPOLOGY_HEADER",
    "DEFAULT_STREAM",
    "SYSTEM_COMPONENT",
    "TICK_STREAM",
    "AckedEvent",
    "BaseBolt",
    "BaseTransactionalBolt",
    "BasicBolt",
    "BasicOutputCollector",
    "BatchBolt",
    "BatchOutputCollector",
    "Bolt",
    "BoltError",
    "BoltStateError",
    "BoltTimeoutError",
    "Committer",
    "Component",
    "ComponentDeclarer",
    "CustomStreamGrouping",
    "DeadLetteredEvent",
    "DoubleAckError",
    "EmitError",
    "Event",
    "EventHook",
    "EventValues",
    "FailBatch",
    "FailReason",
    "FailedEvent",
    "FailedTry",
    "FolderMetadataStore",
    "ForeignTupleError",
    "FunctionBolt",
    "Grouping",
    "GroupingContext",
    "MemoryMetadataStore",
    "MemoryOpaqueTransactionalSpout",
    "MemoryTransactionalSpout",
    "MetadataStore",
    "OpaquePartitionedEmitter",
    "OpaquePartitionedTransactionalSpout",
    "OrderedStreamSpout",
    "Ordering",
    "OutputCollector",
    "OutputRecord",
    "Outputs",
    "PartitionCoordinator",
    "PartitionedEmitter",
    "PartitionedTransactionalSpout",
    "Place",
    "ProcessSettings",
    "RetryPolicy",
    "RotatingTransactionalState",
    "StepKind",
    "TaskId",
    "To",
    "Topology",
    "TopologyBuildError",
    "TopologyBuilder",
    "TopologyContext",
    "TopologyError",
    "TopologyTester",
    "TransactionAttempt",
    "TransactionContext",
    "TransactionError",
    "TransactionMetadataError",
    "TransactionOrderError",
    "TransactionTester",
    "TransactionalCoordinator",
    "TransactionalEmitter",
    "TransactionalSpout",
    "TransactionalTopology",
    "TransactionalTopologyBuilder",
    "TreeFailure",
    "TreeStep",
    "Tuple",
    "TupleTree",
    "UngroupableValueError",
    "bolt",
    "stable_hash",
]
