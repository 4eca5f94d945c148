"""Sequitur: into Kafka once and in order; out of it in event-time order.

The public names in one place; the packages they come from are `producer` and `consumer`.
"""

from consumer import EventTimeSpec, ReorderSettings, parse_event_time_spec
from producer import (
    EVENT_ID_HEADER,
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

__all__ = [
    "EVENT_ID_HEADER",
    "EventId",
    "EventTimeSpec",
    "IdempotentProducer",
    "KafkaSettings",
    "NotPersisted",
    "Outcome",
    "Persisted",
    "PossiblyPersisted",
    "ProducerSettings",
    "Record",
    "ReorderSettings",
    "Ticket",
    "TicketResult",
    "parse_event_id",
    "parse_event_time_spec",
]
