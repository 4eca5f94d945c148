"""A topology in one line: the events of a stream, in windows, into a topic.

::

    topology = stream("clicks").window(session("30 min")).count().to("counts")

is the same as ::

    builder = TopologyBuilder("clicks")
    builder.set_spout("clicks")
    builder.set_bolt("windows", session("30 min", count=Count())).fields_grouping("clicks", "key")
    builder.set_output("counts", "counts", value=None).local_grouping("windows")
    builder.set_output("late", "counts.late").local_grouping("windows", "late")
    topology = builder.build()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sequitur.consumer.topology.api.builder import TopologyBuilder
from sequitur.consumer.topology.windows.aggregates import (
    Collect,
    Count,
    Max,
    Mean,
    Min,
    Quantiles,
    Sum,
)
from sequitur.consumer.topology.windows.window_bolt import LATE, WindowBolt
from sequitur.errors import TopologyBuildError

if TYPE_CHECKING:
    from sequitur.consumer.topology.api.builder import Topology
    from sequitur.consumer.topology.api.keyed import KeyedBolt
    from sequitur.consumer.topology.windows.aggregates import Aggregate
    from sequitur.consumer.topology.windows.event_values import Of


def stream(name: str) -> EventStream:
    """Begin a topology in one line, with the ordered stream.

    ::

        topology = stream("clicks").window(session("30 min")).count().to("counts")

    Args:
        name: Name of the topology and of its spout.
    """
    return EventStream(name)


class EventStream:
    """The events of the ordered stream.

    Args:
        name: Name of the topology and of its spout.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def window(self, window: KeyedBolt) -> WindowedStream:
        """Put the events of each key into windows, see `WindowedStream`."""
        return WindowedStream(self._name, window)


class WindowedStream:
    """The windows of each key, and what is computed of them.

    Each method returns the same windows with one more field in their results.

    Args:
        name: Name of the topology and of its spout.
        window: `tumbling`, `hopping`, `sliding` or `session`, with or without aggregates.

    Raises:
        TopologyBuildError: `window` is none of these.
    """

    def __init__(self, name: str, window: KeyedBolt) -> None:
        if not isinstance(window, WindowBolt):
            raise TopologyBuildError(
                f"stream {name!r}: {type(window).__name__} is not a window: give tumbling(), "
                "hopping(), sliding() or session(), or build the topology with TopologyBuilder"
            )
        self._name = name
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
        return WindowedStream(self._name, self._window.computing(**aggregates))

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
        builder.set_bolt("windows", self._window).fields_grouping(self._name, "key")
        builder.set_output("results", topic, value=None).local_grouping("windows")
        if LATE in self._window.streams:
            builder.set_output(LATE, late or f"{topic}.late").local_grouping("windows", LATE)
        return builder.build()
