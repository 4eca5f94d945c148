"""Events that will not be sent any more, for an application that stores them elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from sequitur.kafka.record_batch import records_of, seal
from sequitur.kafka.records import EVENT_ID_HEADER

if TYPE_CHECKING:
    from sequitur.kafka.record_batch import Header, StoredRecord
    from sequitur.producer._outcomes import NotPersisted, PossiblyPersisted
    from sequitur.producer.batching.batch import Batch


@dataclass(frozen=True, slots=True)
class GivenUp:
    """One event that is not, or not surely, in the log, and that is not sent again."""

    topic: str
    partition: int | None  # its partition; None when it was refused before it had one
    event_id: str | None  # its event id; None when it was refused before it had one
    key: bytes | None
    value: bytes | None  # its payload, whole; None is a tombstone
    headers: tuple[Header, ...]  # its own headers, without the event id
    # the timestamp of its record, milliseconds since 1970; None when it was refused before it had
    # one
    timestamp_ms: int | None
    outcome: NotPersisted | PossiblyPersisted


OnGivenUp: TypeAlias = Callable[[Sequence[GivenUp]], None]
"""Called with events of one batch, before they get their outcome and the journal forgets them."""


def events_of(batch: Batch, outcome: NotPersisted | PossiblyPersisted) -> list[GivenUp]:
    """Return the events of a batch that was given up."""
    data = batch.data
    if batch.builder is not None:
        data = seal(batch.builder, "none")
    return [
        GivenUp(
            topic=batch.topic,
            partition=batch.partition,
            event_id=_event_id(record),
            key=record.key,
            value=record.value,
            headers=record.headers[:-1],  # the last one is the event id
            timestamp_ms=record.timestamp_ms,
            outcome=outcome,
        )
        for record in records_of(data)
    ]


def _event_id(record: StoredRecord) -> str:
    name, value = record.headers[-1]
    assert name == EVENT_ID_HEADER
    return (value or b"").decode()
