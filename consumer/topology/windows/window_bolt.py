"""What all windows share: which events they take, what is late, and how a result is put out."""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from sequitur.consumer.topology.api.keyed import KeyedBolt
from sequitur.consumer.topology.api.lengths import length_ms
from sequitur.consumer.topology.windows.aggregates import Aggregate
from sequitur.consumer.topology.windows.event_values import EventReader
from sequitur.errors import TopologyBuildError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from sequitur.consumer.topology.api.bolt import TopologyContext
    from sequitur.consumer.topology.api.collector import OutputCollector
    from sequitur.consumer.topology.api.keyed import Key
    from sequitur.consumer.topology.api.lengths import Length
    from sequitur.consumer.topology.api.tuple import Event

LATE: Final = "late"
LATE_FIELDS: Final = ("key", "value", "headers", "event_time_ms", "topic", "partition", "offset")


class WindowBolt(KeyedBolt):
    """Computes aggregates of the events of each key by windows of event time."""

    takes_events = True
    must_be_read = (LATE,)

    def __init__(self, title: str, closing: Closing, aggregates: Mapping[str, Aggregate]) -> None:
        self._title = title
        self._closing = closing
        self._allow_late_ms = closing.allow_late_ms
        self.lag_ms = closing.allow_late_ms + 1
        self.streams = {} if closing.drops_late else {LATE: LATE_FIELDS}
        self._compute(aggregates)

    def _compute(self, aggregates: Mapping[str, Aggregate]) -> None:
        title = self._title
        extra = () if self._closing.early_ms is None else ("version", "is_final")
        own = ("key", "begin_ms", "end_ms", *extra)
        for name, one in aggregates.items():
            if not isinstance(one, Aggregate):
                raise TopologyBuildError(f"{title}: {name} = {one!r:.100}: it is not an Aggregate")
            if name in own:
                raise TopologyBuildError(f"{title}: an aggregate cannot be named {name!r}")
        self.fields = (*own[:3], *aggregates, *extra)
        self._named = dict(aggregates)
        self._aggregates = tuple(aggregates.values())
        self._reader()  # refuses a wrong name of a field now

    def computing(self, **aggregates: Aggregate) -> Self:
        """Return the same windows with more that is computed."""
        for name in aggregates:
            if name in self._named:
                raise TopologyBuildError(f"{self._title}: it computes {name!r} already")
        made = copy(self)
        made._compute({**self._named, **aggregates})  # noqa: SLF001 - of the same class
        return made

    def declared(self) -> dict[str, tuple[str, ...]]:
        if not self._aggregates:
            title = self._title
            raise TopologyBuildError(f"{title}: name what it computes, such as count=Count()")
        return super().declared()

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        super().prepare(context, collector)
        self._read = self._reader()  # it cannot be pickled

    @abstractmethod
    def process(self, event: Event, key: Key, /) -> None:
        """Add an event to its windows."""

    def _reader(self) -> EventReader:
        return EventReader([one.of for one in self._aggregates])

    def _begin(self) -> list[Any]:
        return [one.begin() for one in self._aggregates]

    def _add(self, states: list[Any], values: list[Any]) -> None:
        for at, value in enumerate(values):
            if value is not None:
                states[at] = self._aggregates[at].add(states[at], value)

    def _merge(self, states: list[Any], others: list[Any]) -> None:
        for at, other in enumerate(others):
            states[at] = self._aggregates[at].merge(states[at], other)

    def _results(self, states: list[Any]) -> list[Any]:
        return [one.result(state) for one, state in zip(self._aggregates, states, strict=True)]

    def _put_aside(self, event: Event, key: Key) -> None:
        """Emit and count an event for whose window it is too late."""
        key.count_late()
        if not self._closing.drops_late:
            key.emit((*event.values[:7],), stream=LATE)


class Closing(NamedTuple):
    """When windows close, and what becomes of events that come later."""

    allow_late_ms: int
    drops_late: bool
    early_ms: int | None

    @classmethod
    def of(
        cls,
        title: str,
        allow_late: Length,
        late: str,
        early: timedelta | float | str | None = None,
    ) -> Closing:
        if late not in {"stream", "drop"}:
            raise TopologyBuildError(f'{title}: late = {late!r}: expected "stream" or "drop"')
        return cls(
            length_ms(title, "allow_late", allow_late, least=0),
            late == "drop",
            None if early is None else length_ms(title, "early", early),
        )
