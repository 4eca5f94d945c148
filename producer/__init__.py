"""The idempotent producer and its daemon: into Kafka once and in order."""

from producer._errors import ProducerError
from producer._event_id import (
    EVENT_ID_HEADER,
    EventId,
    MalformedEventIdError,
    encode_event_id,
    parse_event_id,
)
from producer.settings import KafkaSettings, SettingsError, load_settings

__all__ = [
    "EVENT_ID_HEADER",
    "EventId",
    "KafkaSettings",
    "MalformedEventIdError",
    "ProducerError",
    "SettingsError",
    "encode_event_id",
    "load_settings",
    "parse_event_id",
]
