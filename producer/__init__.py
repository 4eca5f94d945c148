"""The idempotent producer and its daemon: events into Kafka once and in order.

Each name is loaded when it is first asked for: a topology is tested without a Kafka client, and
`python -m sequitur.producer`, which imports the package first, handles Ctrl-C before it loads more.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sequitur.kafka.records import EVENT_ID_HEADER, EventId, parse_event_id
    from sequitur.kafka.settings import KafkaSettings, TokenProvider
    from sequitur.producer._client import IdempotentProducer
    from sequitur.producer._outcome import (
        Delivery,
        Failure,
        GivenUp,
        NotPersisted,
        OnDelivery,
        OnGivenUp,
        OnSendFailure,
        Outcome,
        Persisted,
        PossiblyPersisted,
        Ticket,
        TicketResult,
    )
    from sequitur.producer._record import Partitioner, Record, Serializer
    from sequitur.producer._running import ProducerStatistics
    from sequitur.producer._settings import ProducerSettings
    from sequitur.producer.journal.frames import SourcePosition

__all__ = [
    "EVENT_ID_HEADER",
    "Delivery",
    "EventId",
    "Failure",
    "GivenUp",
    "IdempotentProducer",
    "KafkaSettings",
    "NotPersisted",
    "OnDelivery",
    "OnGivenUp",
    "OnSendFailure",
    "Outcome",
    "Partitioner",
    "Persisted",
    "PossiblyPersisted",
    "ProducerSettings",
    "ProducerStatistics",
    "Record",
    "Serializer",
    "SourcePosition",
    "Ticket",
    "TicketResult",
    "TokenProvider",
    "parse_event_id",
]

_LOADED_WHEN_USED: Final = {
    "Delivery": "._outcome",
    "EVENT_ID_HEADER": "sequitur.kafka.records",
    "EventId": "sequitur.kafka.records",
    "Failure": "._outcome",
    "GivenUp": "._outcome",
    "IdempotentProducer": "._client",
    "KafkaSettings": "sequitur.kafka.settings",
    "NotPersisted": "._outcome",
    "OnDelivery": "._outcome",
    "OnGivenUp": "._outcome",
    "OnSendFailure": "._outcome",
    "Outcome": "._outcome",
    "Partitioner": "._record",
    "Persisted": "._outcome",
    "PossiblyPersisted": "._outcome",
    "ProducerSettings": "._settings",
    "ProducerStatistics": "._running",
    "Record": "._record",
    "Serializer": "._record",
    "SourcePosition": ".journal.frames",
    "Ticket": "._outcome",
    "TicketResult": "._outcome",
    "TokenProvider": "sequitur.kafka.settings",
    "parse_event_id": "sequitur.kafka.records",
}


def __getattr__(name: str) -> Any:
    if name not in _LOADED_WHEN_USED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LOADED_WHEN_USED[name], __name__), name)
    return value
