"""Takes out of events what aggregates are of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from sequitur.base.json_field import JsonField
from sequitur.consumer.topology.api.tuple import Event

if TYPE_CHECKING:
    from collections.abc import Sequence

Of = str | Callable[[Event], Any] | None
"""What is taken: a field of the event's JSON value, such as "usage" or "meta.host"; what a function
of the event returns, from the top of a module; None: the value as it is."""


class EventReader:
    """Takes several things out of each event: of equal ones the first is taken, and serves all."""

    def __init__(self, several: Sequence[Of]) -> None:
        distinct = list(dict.fromkeys(several))
        self._readers = [reader(of) for of in distinct]
        self._places = (
            None if len(distinct) == len(several) else [distinct.index(of) for of in several]
        )

    def __call__(self, event: Event) -> list[Any]:
        values = [read(event) for read in self._readers]
        return values if self._places is None else [values[place] for place in self._places]


def reader(of: Of) -> Callable[[Event], Any]:
    """Return a function that takes something out of an event; None where it is missing."""
    if of is None:
        return _value
    if callable(of):
        return of
    field = JsonField(of)
    raw, decode = field.of, msgspec.json.Decoder().decode

    def read(event: Event) -> Any:
        value = event.values[1]
        found = None if value is None else raw(value)
        return None if found is None else decode(found)

    return read


def everything(event: Event) -> bool:
    """Return True of each event: what is of everything counts tombstones, too."""
    del event
    return True


def _value(event: Event) -> Any:
    return event.values[1]
