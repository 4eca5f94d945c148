"""What a component reads, and by which groupings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sequitur.consumer.topology.api.groupings import (
    AllGrouping,
    CustomGrouping,
    DirectGrouping,
    FieldsGrouping,
    GlobalGrouping,
    LocalGrouping,
    LocalOrShuffleGrouping,
    PartialKeyGrouping,
    ShuffleGrouping,
)
from sequitur.consumer.topology.api.topology import Subscription
from sequitur.consumer.topology.api.tuple import DEFAULT_STREAM

if TYPE_CHECKING:
    from sequitur.consumer.topology.api.groupings import CustomStreamGrouping, Grouping


class ComponentDeclarer:
    """Declares what a component reads: each call adds a stream and returns the declarer."""

    def __init__(self, inputs: list[Subscription]) -> None:
        self._inputs = inputs

    def shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> ComponentDeclarer:
        """Distribute tuples evenly over all tasks."""
        return self.grouping(component, ShuffleGrouping(), stream)

    def fields_grouping(
        self, component: str, *fields: str, stream: str = DEFAULT_STREAM
    ) -> ComponentDeclarer:
        """Send tuples with equal values in these fields to one task."""
        return self.grouping(component, FieldsGrouping(fields), stream)

    def all_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> ComponentDeclarer:
        """Send each tuple to every task."""
        return self.grouping(component, AllGrouping(), stream)

    def global_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> ComponentDeclarer:
        """Send all tuples to the first task."""
        return self.grouping(component, GlobalGrouping(), stream)

    def direct_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> ComponentDeclarer:
        """Let the emitter name the task; the stream has to be one of `direct_streams`."""
        return self.grouping(component, DirectGrouping(), stream)

    def local_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> ComponentDeclarer:
        """Keep each tuple in the task where it is."""
        return self.grouping(component, LocalGrouping(), stream)

    none_grouping = local_grouping

    def local_or_shuffle_grouping(
        self, component: str, stream: str = DEFAULT_STREAM
    ) -> ComponentDeclarer:
        """Keep a tuple in its task if the bolt runs there; else distribute tuples evenly."""
        return self.grouping(component, LocalOrShuffleGrouping(), stream)

    def partial_key_grouping(
        self, component: str, *fields: str, stream: str = DEFAULT_STREAM
    ) -> ComponentDeclarer:
        """Send tuples with equal values in these fields to the less loaded of two tasks."""
        return self.grouping(component, PartialKeyGrouping(fields), stream)

    def custom_grouping(
        self, component: str, grouping: CustomStreamGrouping, stream: str = DEFAULT_STREAM
    ) -> ComponentDeclarer:
        """Send tuples to the tasks that your `CustomStreamGrouping` chooses."""
        return self.grouping(component, CustomGrouping(grouping), stream)

    def grouping(
        self, component: str, grouping: Grouping, stream: str = DEFAULT_STREAM
    ) -> ComponentDeclarer:
        """Read a stream by any grouping."""
        self._inputs.append(Subscription(component, stream, grouping))
        return self
