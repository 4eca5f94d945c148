"""Topologies: bolts over the ordered stream, with each event tracked until its tree is done."""

from consumer.topology._acker import Acker, AckFlag, AckLedger, Verdicts, acker_of
from consumer.topology._bolt import (
    BaseBolt,
    BasicBolt,
    BatchBolt,
    Bolt,
    FunctionBolt,
    To,
    TopologyContext,
    bolt,
)
from consumer.topology._builder import ComponentDeclarer, TopologyBuilder
from consumer.topology._collector import BasicOutputCollector, OutputCollector
from consumer.topology._dead_letters import (
    DEAD_ATTEMPTS_HEADER,
    DEAD_DETAIL_HEADER,
    DEAD_EVENT_TIME_HEADER,
    DEAD_HEADERS,
    DEAD_PATH_HEADER,
    DEAD_REASON_HEADER,
    DEAD_TIME_HEADER,
    DEAD_TOPOLOGY_HEADER,
)
from consumer.topology._emission import OutputRecord, Sent
from consumer.topology._errors import (
    BoltError,
    BoltStateError,
    BoltTimeoutError,
    DoubleAckError,
    EmitError,
    ForeignTupleError,
    TopologyBuildError,
    TopologyError,
)
from consumer.topology._executor import Executor
from consumer.topology._groupings import Grouping, GroupingKind, stable_hash
from consumer.topology._pending import EventOutcome, Settlement, runs_now, settle
from consumer.topology._plan import Plan, Stage, plan
from consumer.topology._retry import RetryPolicy
from consumer.topology._rules import Ordering, Placement, Rules, random_ids
from consumer.topology._settings import Outputs, ProcessSettings
from consumer.topology._settlement import held_back
from consumer.topology._tester import DeadLetter, TopologyTester
from consumer.topology._topology import Component, KafkaOutput, Kind, Subscription, Topology
from consumer.topology._trace import Trace
from consumer.topology._tree_view import Step, StepKind, TupleTree
from consumer.topology._tuple import (
    DEFAULT_STREAM,
    Event,
    EventValues,
    FailReason,
    Failure,
    Place,
    Root,
    Stream,
    Tuple,
)

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
    "AckFlag",
    "AckLedger",
    "Acker",
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
    "DeadLetter",
    "DoubleAckError",
    "EmitError",
    "Event",
    "EventOutcome",
    "EventValues",
    "Executor",
    "FailReason",
    "Failure",
    "ForeignTupleError",
    "FunctionBolt",
    "Grouping",
    "GroupingKind",
    "KafkaOutput",
    "Kind",
    "Ordering",
    "OutputCollector",
    "OutputRecord",
    "Outputs",
    "Place",
    "Placement",
    "Plan",
    "ProcessSettings",
    "RetryPolicy",
    "Root",
    "Rules",
    "Sent",
    "Settlement",
    "Stage",
    "Step",
    "StepKind",
    "Stream",
    "Subscription",
    "To",
    "Topology",
    "TopologyBuildError",
    "TopologyBuilder",
    "TopologyContext",
    "TopologyError",
    "TopologyTester",
    "Trace",
    "Tuple",
    "TupleTree",
    "Verdicts",
    "acker_of",
    "bolt",
    "held_back",
    "plan",
    "random_ids",
    "runs_now",
    "settle",
    "stable_hash",
]
