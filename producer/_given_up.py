"""Events that will not be sent any more, for whoever wants to keep them elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from producer._batch import records_of, seal
from producer._event_id import EVENT_ID_HEADER

if TYPE_CHECKING:
    from producer._lane import Batch
    from producer._outcomes import NotPersisted, PossiblyPersisted


@dataclass(frozen=True, slots=True)
class GivenUp:
    """One event that is not, or not surely, in the log, and that we try no more to get there.

    Attributes:
        topic: Where it was to go.
        partition: Its partition; None when it was refused before it had one.
        event_id: Its event id; None when it was refused before it had one.
        key: Its key.
        value: Its payload.
        outcome: What was told of it.
    """

    topic: str
    partition: int | None
    event_id: str | None
    key: bytes | None
    value: bytes | None
    outcome: NotPersisted | PossiblyPersisted


OnGivenUp: TypeAlias = Callable[[Sequence[GivenUp]], None]
"""Called with events of one batch, before they are told of and before the journal forgets them."""


def events_of(batch: Batch, outcome: NotPersisted | PossiblyPersisted) -> list[GivenUp]:
    """The events of a batch that was given up."""
    data = batch.data
    if batch.builder is not None:
        data = seal(batch.builder, "none")
    return [
        GivenUp(
            topic=batch.topic,
            partition=batch.partition,
            event_id=(dict(record.headers)[EVENT_ID_HEADER] or b"").decode(),
            key=record.key,
            value=record.value,
            outcome=outcome,
        )
        for record in records_of(data)
    ]
