"""Topologies: bolts over the ordered stream, with each event tracked until its tree is done."""

from sequitur.consumer.topology._errors import (
    BoltError,
    BoltStateError,
    BoltTimeoutError,
    DoubleAckError,
    EmitError,
    ForeignTupleError,
    TopologyBuildError,
    TopologyError,
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
from sequitur.consumer.topology.api.builder import TopologyBuilder
from sequitur.consumer.topology.api.collector import BasicOutputCollector, OutputCollector, TaskId
from sequitur.consumer.topology.api.dead_letters import (
    DEAD_ATTEMPTS_HEADER,
    DEAD_DETAIL_HEADER,
    DEAD_EVENT_TIME_HEADER,
    DEAD_HEADERS,
    DEAD_PATH_HEADER,
    DEAD_REASON_HEADER,
    DEAD_TIME_HEADER,
    DEAD_TOPOLOGY_HEADER,
)
from sequitur.consumer.topology.api.declarer import ComponentDeclarer
from sequitur.consumer.topology.api.failure import FailReason, TreeFailure
from sequitur.consumer.topology.api.groupings import (
    AllGrouping,
    CustomGrouping,
    CustomStreamGrouping,
    DirectGrouping,
    Emitter,
    FieldsGrouping,
    GlobalGrouping,
    Grouping,
    GroupingContext,
    LocalGrouping,
    LocalOrShuffleGrouping,
    PartialKeyGrouping,
    ShuffleGrouping,
)
from sequitur.consumer.topology.api.hooks import AckedEvent, EventHook, FailedEvent, notify
from sequitur.consumer.topology.api.moment import (
    TICK_STREAM,
    Moment,
    next_tick_ms,
    ticks_due,
    watermark_after,
)
from sequitur.consumer.topology.api.stable_hash import stable_hash
from sequitur.consumer.topology.api.topology import (
    Component,
    KafkaOutput,
    Kind,
    Subscription,
    Topology,
)
from sequitur.consumer.topology.api.tuple import (
    DEFAULT_STREAM,
    SYSTEM_COMPONENT,
    Event,
    EventValues,
    Place,
    Stream,
    Tuple,
)
from sequitur.consumer.topology.engine.emission import OutputRecord, Sent
from sequitur.consumer.topology.engine.executor import Executor, ExecutorResult
from sequitur.consumer.topology.engine.instances import Instances
from sequitur.consumer.topology.engine.plan import Plan, Stage, plan
from sequitur.consumer.topology.engine.rules import Ordering, Placement, Rules, random_ids
from sequitur.consumer.topology.engine.trace import Trace
from sequitur.consumer.topology.settling.acker import Acker, AckFlag, Verdicts, acker_of
from sequitur.consumer.topology.settling.pending import due_ms, next_due_ms, numbered, runs_now
from sequitur.consumer.topology.settling.retry import RetryPolicy
from sequitur.consumer.topology.settling.root import Root
from sequitur.consumer.topology.settling.settlement import (
    EventOutcome,
    Settlement,
    held_back,
    settle,
)
from sequitur.consumer.topology.tester.tester import DeadLetteredEvent, TopologyTester
from sequitur.consumer.topology.tester.tree_view import StepKind, TreeStep, TupleTree

__all__ = [
    "DEAD_ATTEMPTS_HEADER",
    "DEAD_DETAIL_HEADER",
    "DEAD_EVENT_TIME_HEADER",
    "DEAD_HEADERS",
    "DEAD_PATH_HEADER",
    "DEAD_REASON_HEADER",
    "DEAD_TIME_HEADER",
    "DEAD_TOPOLOGY_HEADER",
    "DEFAULT_STREAM",
    "SYSTEM_COMPONENT",
    "TICK_STREAM",
    "AckFlag",
    "AckedEvent",
    "Acker",
    "AllGrouping",
    "BaseBolt",
    "BasicBolt",
    "BasicOutputCollector",
    "BatchBolt",
    "Bolt",
    "BoltError",
    "BoltStateError",
    "BoltTimeoutError",
    "Component",
    "ComponentDeclarer",
    "CustomGrouping",
    "CustomStreamGrouping",
    "DeadLetteredEvent",
    "DirectGrouping",
    "DoubleAckError",
    "EmitError",
    "Emitter",
    "Event",
    "EventHook",
    "EventOutcome",
    "EventValues",
    "Executor",
    "ExecutorResult",
    "FailReason",
    "FailedEvent",
    "FieldsGrouping",
    "ForeignTupleError",
    "FunctionBolt",
    "GlobalGrouping",
    "Grouping",
    "GroupingContext",
    "Instances",
    "KafkaOutput",
    "Kind",
    "LocalGrouping",
    "LocalOrShuffleGrouping",
    "Moment",
    "Ordering",
    "OutputCollector",
    "OutputRecord",
    "Outputs",
    "PartialKeyGrouping",
    "Place",
    "Placement",
    "Plan",
    "ProcessSettings",
    "RetryPolicy",
    "Root",
    "Rules",
    "Sent",
    "Settlement",
    "ShuffleGrouping",
    "Stage",
    "StepKind",
    "Stream",
    "Subscription",
    "TaskId",
    "To",
    "Topology",
    "TopologyBuildError",
    "TopologyBuilder",
    "TopologyContext",
    "TopologyError",
    "TopologyTester",
    "Trace",
    "TreeFailure",
    "TreeStep",
    "Tuple",
    "TupleTree",
    "Verdicts",
    "acker_of",
    "bolt",
    "due_ms",
    "held_back",
    "next_due_ms",
    "next_tick_ms",
    "notify",
    "numbered",
    "plan",
    "random_ids",
    "runs_now",
    "settle",
    "stable_hash",
    "ticks_due",
    "watermark_after",
]
