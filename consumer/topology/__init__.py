"""Topologies: bolts over the ordered stream, with each event tracked until its tree is done.

These are the names for users of topologies; `sequitur.testing` has those of the testers. The jobs
import from the packages: `api`, `settling`, `engine`, `step` and `tester`.
"""

from sequitur.base.copy_headers import FailReason
from sequitur.consumer.topology._settings import Outputs, ProcessSettings
from sequitur.consumer.topology.api.bolt import (
    BaseBolt,
    BasicBolt,
    BatchBolt,
    Bolt,
    To,
    TopologyContext,
    bolt,
)
from sequitur.consumer.topology.api.builder import (
    AckedEvent,
    ComponentDeclarer,
    EventHook,
    FailedEvent,
    Topology,
    TopologyBuilder,
    TreeFailure,
)
from sequitur.consumer.topology.api.collector import (
    BasicOutputCollector,
    OutputCollector,
    TaskId,
)
from sequitur.consumer.topology.api.groupings import (
    CustomStreamGrouping,
    GroupingContext,
    stable_hash,
)
from sequitur.consumer.topology.api.key_items import KeyList, KeyMap
from sequitur.consumer.topology.api.keyed import Key, KeyedBolt, Timer
from sequitur.consumer.topology.api.tuple import (
    DEFAULT_STREAM,
    Event,
    EventValues,
    Place,
    Tuple,
)
from sequitur.consumer.topology.engine.plan import Ordering
from sequitur.consumer.topology.tester.tester import TopologyTester
from sequitur.consumer.topology.tester.transaction_tester import TransactionTester
from sequitur.consumer.topology.transactional.attempt import TransactionAttempt
from sequitur.consumer.topology.transactional.builder import (
    BaseTransactionalBolt,
    BatchOutputCollector,
    Committer,
    OrderedStreamSpout,
    TransactionalTopology,
    TransactionalTopologyBuilder,
    TransactionContext,
)
from sequitur.consumer.topology.transactional.spouts import (
    FolderMetadataStore,
    MemoryMetadataStore,
    MemoryOpaqueTransactionalSpout,
    MemoryTransactionalSpout,
    MetadataStore,
    OpaquePartitionedEmitter,
    OpaquePartitionedTransactionalSpout,
    PartitionCoordinator,
    PartitionedEmitter,
    PartitionedTransactionalSpout,
    SpoutCollector,
    TransactionalCoordinator,
    TransactionalEmitter,
    TransactionalSpout,
)

__all__ = [
    "DEFAULT_STREAM",
    "AckedEvent",
    "BaseBolt",
    "BaseTransactionalBolt",
    "BasicBolt",
    "BasicOutputCollector",
    "BatchBolt",
    "BatchOutputCollector",
    "Bolt",
    "Committer",
    "ComponentDeclarer",
    "CustomStreamGrouping",
    "Event",
    "EventHook",
    "EventValues",
    "FailReason",
    "FailedEvent",
    "FolderMetadataStore",
    "GroupingContext",
    "Key",
    "KeyList",
    "KeyMap",
    "KeyedBolt",
    "MemoryMetadataStore",
    "MemoryOpaqueTransactionalSpout",
    "MemoryTransactionalSpout",
    "MetadataStore",
    "OpaquePartitionedEmitter",
    "OpaquePartitionedTransactionalSpout",
    "OrderedStreamSpout",
    "Ordering",
    "OutputCollector",
    "Outputs",
    "PartitionCoordinator",
    "PartitionedEmitter",
    "PartitionedTransactionalSpout",
    "Place",
    "ProcessSettings",
    "SpoutCollector",
    "TaskId",
    "Timer",
    "To",
    "Topology",
    "TopologyBuilder",
    "TopologyContext",
    "TopologyTester",
    "TransactionAttempt",
    "TransactionContext",
    "TransactionTester",
    "TransactionalCoordinator",
    "TransactionalEmitter",
    "TransactionalSpout",
    "TransactionalTopology",
    "TransactionalTopologyBuilder",
    "TreeFailure",
    "Tuple",
    "bolt",
    "stable_hash",
]
