"""A topology in one line: the events of a stream, in windows, into a topic.

::

    topology = stream("clicks").key_by("user").window(session("30 min")).count().to("counts")

is the same as ::

    builder = TopologyBuilder("clicks")
    builder.set_spout("clicks")
    builder.set_bolt("keyed", KeyBy("user")).local_grouping("clicks")
    builder.set_bolt("windows", session("30 min", count=Count())).fields_grouping("keyed", "key")
    builder.set_output("counts", "counts", value=None).local_grouping("windows")
    builder.set_output("late", "counts.late").local_grouping("windows", "late")
    topology = builder.build()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from sequitur.consumer.topology.api.bolt import BasicBolt
from sequitur.consumer.topology.api.builder import EVENT_FIELDS, TopologyBuilder
from sequitur.consumer.topology.windows.aggregates import (
    Collect,
    Count,
    Max,
    Mean,
    Min,
    Quantiles,
    Sum,
)
from sequitur.consumer.topology.windows.event_values import reader
from sequitur.consumer.topology.windows.window_bolt import LATE, WindowBolt
from sequitur.errors import TopologyBuildError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.consumer.topology.api.bolt import TopologyContext
    from sequitur.consumer.topology.api.builder import Topology
    from sequitur.consumer.topology.api.collector import OutputCollector
    from sequitur.consumer.topology.api.keyed import KeyedBolt
    from sequitur.consumer.topology.api.tuple import Tuple
    from sequitur.consumer.topology.windows.aggregates import Aggregate
    from sequitur.consumer.topology.windows.event_values import Of


def stream(name: str) -> EventStream:
    """Begin a topology in one line, with the ordered stream.

    ::

        topology = stream("clicks").key_by("user").window(session("30 min")).count().to("counts")

    Args:
        name: Name of the topology and of its spout.
    """
    return EventStream(name)


class EventStream:
    """The events of the ordered stream.

    Args:
        name: Name of the topology and of its spout.
        field: The field of events that is their key. None: the key that they have.
    """

    def __init__(self, name: str, field: str | None = None) -> None:
        self._name = name
        self._field = field

    def key_by(self, field: str) -> EventStream:
        """Take a field of the event's JSON value, such as "user" or "meta.host", for its key.

        Without it the key is that of the record. An event without the field fails.

        Raises:
            KeySpecError: It is no name of a field.
        """
        return EventStream(self._name, KeyBy(field).field)

    def window(self, window: KeyedBolt) -> WindowedStream:
        """Put the events of each key into windows, see `WindowedStream`."""
        return WindowedStream(self._name, self._field, window)


class WindowedStream:
    """The windows of each key, and what is computed of them.

    Each method returns the same windows with one more field in their results.

    Args:
        name: Name of the topology and of its spout.
        field: The field of events that is their key. None: the key that they have.
        window: `tumbling`, `hopping`, `sliding` or `session`, with or without aggregates.

    Raises:
        TopologyBuildError: `window` is none of these.
    """

    def __init__(self, name: str, field: str | None, window: KeyedBolt) -> None:
        if not isinstance(window, WindowBolt):
            raise TopologyBuildError(
                f"stream {name!r}: {type(window).__name__} is not a window: give tumbling(), "
                "hopping(), sliding() or session(), or build the topology with TopologyBuilder"
            )
        self._name = name
        self._field = field
        self._window = window

    def count(self, of: Of = None) -> WindowedStream:
        """Count events in `count`, see `Count`."""
        return self.aggregate(count=Count(of))

    def sum(self, of: Of) -> WindowedStream:
        """Sum numbers up in `sum`, see `Sum`."""
        return self.aggregate(sum=Sum(of))

    def mean(self, of: Of) -> WindowedStream:
        """Compute the mean of numbers in `mean`, see `Mean`."""
        return self.aggregate(mean=Mean(of))

    def min(self, of: Of) -> WindowedStream:
        """Find the smallest value in `min`, see `Min`."""
        return self.aggregate(min=Min(of))

    def max(self, of: Of) -> WindowedStream:
        """Find the largest value in `max`, see `Max`."""
        return self.aggregate(max=Max(of))

    def quantiles(self, of: Of, *quantiles: float) -> WindowedStream:
        """Compute quantiles of numbers in `quantiles`, see `Quantiles`."""
        return self.aggregate(quantiles=Quantiles(of, *quantiles))

    def collect(self, of: Of) -> WindowedStream:
        """Collect values in `collect`, see `Collect`."""
        return self.aggregate(collect=Collect(of))

    def aggregate(self, **aggregates: Aggregate) -> WindowedStream:
        """Compute aggregates, each in the field of its name.

        Raises:
            TopologyBuildError: A name is taken.
        """
        return WindowedStream(self._name, self._field, self._window.computing(**aggregates))

    def to(self, topic: str, *, late: str | None = None) -> Topology:
        """Write results into a topic, each a JSON object under its key, and build the topology.

        Args:
            topic: The topic.
            late: Topic of late events, if the windows do not drop them. By default it has the name
                of `topic` with `.late` behind.

        Raises:
            TopologyBuildError: Nothing is computed, or a name is not valid.
        """
        builder = TopologyBuilder(self._name)
        builder.set_spout(self._name)
        keyed = self._name
        if self._field is not None:
            keyed = "keyed"
            builder.set_bolt(keyed, KeyBy(self._field)).local_grouping(self._name)
        builder.set_bolt("windows", self._window).fields_grouping(keyed, "key")
        builder.set_output("results", topic, value=None).local_grouping("windows")
        if LATE in self._window.streams:
            builder.set_output(LATE, late or f"{topic}.late").local_grouping("windows", LATE)
        return builder.build()


class KeyBy(BasicBolt):
    """Gives each event the value of a field as its key.

    Args:
        field: The field.
    """

    fields = EVENT_FIELDS

    def __init__(self, field: str) -> None:
        self.field = field
        reader(field)  # refuses a wrong name of a field now

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        super().prepare(context, collector)
        self._key = reader(self.field)  # it cannot be pickled

    def process(self, tuple: Tuple, _: Any) -> Iterator[Any]:  # noqa: A002
        key: Any = self._key(tuple)  # type: ignore[arg-type]  # it has an event's values
        if key is None:
            raise ValueError(f"the event has no field {self.field!r}")
        encoded = key.encode() if isinstance(key, str) else msgspec.json.encode(key)
        yield (encoded, *tuple.values[1:])
