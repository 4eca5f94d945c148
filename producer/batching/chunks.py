"""The events of `send_many`, some thousands at a time."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from sequitur.producer._record import Record, records_of_arrow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

CHUNK_RECORDS: Final = 4_000
"""So many are laid out in a few milliseconds, during which the loop does nothing else."""


class Chunks:
    """Cut what `send_many` is given into lists of records."""

    def __init__(
        self,
        events: Iterable[Record | bytes] | Any,
        record_of: Callable[[Any], Record] | None = None,
    ) -> None:
        is_table = hasattr(events, "schema") and hasattr(events, "column")
        self._events: Iterator[Any] = records_of_arrow(events) if is_table else iter(events)
        if record_of is not None:
            self._events = map(record_of, self._events)
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[list[Record]]:
        """Give chunks until there are no more events or their iterable raises."""
        while self.error is None:
            chunk: list[Any] = []
            try:
                # The events before an error stay in the list.
                chunk.extend(islice(self._events, CHUNK_RECORDS))
            except Exception as error:  # noqa: BLE001 - `send_many` raises it
                self.error = error
            if not chunk:
                return
            yield _all_records(chunk)


def _all_records(events: list[Record | bytes]) -> list[Record]:
    if set(map(type, events)) == {Record}:
        return events  # type: ignore[return-value]  # just checked
    return [event if isinstance(event, Record) else Record(event) for event in events]
