"""Sequitur: into Kafka once and in order; out of it in event-time order.

The public names in one place; the packages they come from are `sequitur.producer` and
`sequitur.consumer`. They are loaded when a name is first used, so that the command line starts
quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sequitur.consumer import EventTimeSpec, ReorderSettings, parse_event_time_spec
    from sequitur.consumer.topology import (
        AckedEvent,
        BaseBolt,
        BasicBolt,
        BasicOutputCollector,
        BatchBolt,
        Bolt,
        CustomStreamGrouping,
        Event,
        EventHook,
        EventValues,
        FailedEvent,
        GroupingContext,
        OutputCollector,
        ProcessSettings,
        TaskId,
        To,
        Topology,
        TopologyBuilder,
        TopologyContext,
        TopologyTester,
        Tuple,
        bolt,
    )
    from sequitur.producer import (
        EVENT_ID_HEADER,
        Delivery,
        EventId,
        IdempotentProducer,
        KafkaSettings,
        NotPersisted,
        NotPersistedError,
        Outcome,
        Persisted,
        PossiblyPersisted,
        PossiblyPersistedError,
        ProducerSettings,
        Record,
        Ticket,
        TicketResult,
        parse_event_id,
    )

__all__ = [
    "EVENT_ID_HEADER",
    "AckedEvent",
    "BaseBolt",
    "BasicBolt",
    "BasicOutputCollector",
    "BatchBolt",
    "Bolt",
    "CustomStreamGrouping",
    "Delivery",
    "Event",
    "EventHook",
    "EventId",
    "EventTimeSpec",
    "EventValues",
    "FailedEvent",
    "GroupingContext",
    "IdempotentProducer",
    "KafkaSettings",
    "NotPersisted",
    "NotPersistedError",
    "Outcome",
    "OutputCollector",
    "Persisted",
    "PossiblyPersisted",
    "PossiblyPersistedError",
    "ProcessSettings",
    "ProducerSettings",
    "Record",
    "ReorderSettings",
    "TaskId",
    "Ticket",
    "TicketResult",
    "To",
    "Topology",
    "TopologyBuilder",
    "TopologyContext",
    "TopologyTester",
    "Tuple",
    "bolt",
    "parse_event_id",
    "parse_event_time_spec",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        for package in ("producer", "consumer", "consumer.topology"):
            module = import_module(f"sequitur.{package}")
            if name in module.__all__:
                value = globals()[name] = getattr(module, name)
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
