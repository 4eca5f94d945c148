"""Sequitur: into Kafka once and in order; out of it in event-time order.

The public names in one place; they come from `sequitur.producer` and from the packages of
`sequitur.consumer`. They are loaded when a name is first used, so that the command line starts
quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sequitur.consumer.reorder import EventTimeSpec, ReorderSettings, parse_event_time_spec
    from sequitur.consumer.topology import (
        AckedEvent,
        BaseBolt,
        BaseTransactionalBolt,
        BasicBolt,
        BasicOutputCollector,
        BatchBolt,
        BatchOutputCollector,
        Bolt,
        Committer,
        CustomStreamGrouping,
        Event,
        EventHook,
        EventValues,
        FailedEvent,
        GroupingContext,
        Key,
        KeyedBolt,
        KeyList,
        KeyMap,
        OrderedStreamSpout,
        OutputCollector,
        ProcessSettings,
        TaskId,
        Timer,
        To,
        Topology,
        TopologyBuilder,
        TopologyContext,
        TopologyTester,
        TransactionalTopology,
        TransactionalTopologyBuilder,
        TransactionAttempt,
        TransactionContext,
        TransactionTester,
        Tuple,
        bolt,
    )
    from sequitur.consumer.topology.state import (
        MapState,
        NonTransactionalState,
        OpaqueState,
        SQLStore,
        TransactionalState,
    )
    from sequitur.errors import FailBatch, NotPersistedError, PossiblyPersistedError
    from sequitur.producer import (
        EVENT_ID_HEADER,
        Delivery,
        EventId,
        IdempotentProducer,
        KafkaSettings,
        NotPersisted,
        Outcome,
        Persisted,
        PossiblyPersisted,
        ProducerSettings,
        Record,
        Ticket,
        TicketResult,
        parse_event_id,
    )
    from sequitur.subscription import (
        Backoff,
        Edge,
        Message,
        Position,
        Subscription,
        SubscriptionStats,
        SubscriptionType,
    )

_OF_SUBSCRIPTIONS: Final = frozenset(
    {"Backoff", "Edge", "Message", "Position", "Subscription", "SubscriptionStats"}
    | {"SubscriptionType"}
)
"""They are loaded with a Kafka client, which others do without."""
_FACES: Final = (
    *("errors", "producer", "consumer.reorder", "consumer.topology", "consumer.topology.state"),
)

__all__ = [
    "EVENT_ID_HEADER",
    "AckedEvent",
    "Backoff",
    "BaseBolt",
    "BaseTransactionalBolt",
    "BasicBolt",
    "BasicOutputCollector",
    "BatchBolt",
    "BatchOutputCollector",
    "Bolt",
    "Committer",
    "CustomStreamGrouping",
    "Delivery",
    "Edge",
    "Event",
    "EventHook",
    "EventId",
    "EventTimeSpec",
    "EventValues",
    "FailBatch",
    "FailedEvent",
    "GroupingContext",
    "IdempotentProducer",
    "KafkaSettings",
    "Key",
    "KeyList",
    "KeyMap",
    "KeyedBolt",
    "MapState",
    "Message",
    "NonTransactionalState",
    "NotPersisted",
    "NotPersistedError",
    "OpaqueState",
    "OrderedStreamSpout",
    "Outcome",
    "OutputCollector",
    "Persisted",
    "Position",
    "PossiblyPersisted",
    "PossiblyPersistedError",
    "ProcessSettings",
    "ProducerSettings",
    "Record",
    "ReorderSettings",
    "SQLStore",
    "Subscription",
    "SubscriptionStats",
    "SubscriptionType",
    "TaskId",
    "Ticket",
    "TicketResult",
    "Timer",
    "To",
    "Topology",
    "TopologyBuilder",
    "TopologyContext",
    "TopologyTester",
    "TransactionAttempt",
    "TransactionContext",
    "TransactionTester",
    "TransactionalState",
    "TransactionalTopology",
    "TransactionalTopologyBuilder",
    "Tuple",
    "bolt",
    "parse_event_id",
    "parse_event_time_spec",
]


def __getattr__(name: str) -> Any:
    if name in _OF_SUBSCRIPTIONS:
        value = globals()[name] = getattr(import_module("sequitur.subscription"), name)
        return value
    if name in __all__:
        for face in _FACES:
            module = import_module(f"sequitur.{face}")
            if name in module.__all__:
                value = globals()[name] = getattr(module, name)
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
