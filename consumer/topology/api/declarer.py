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
        """Tuples go evenly to all tasks."""
        return self.grouping(component, ShuffleGrouping(), stream)

    def fields_grouping(
        self, component: str, *fields: str, stream: str = DEFAULT_STREAM
    ) -> ComponentDeclarer:
        """Tuples with equal values in these fields go to one task."""
        return self.grouping(component, FieldsGrouping(fields), stream)

    def all_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> ComponentDeclarer:
        """Each tuple goes to each task."""
        return self.grouping(component, AllGrouping(), stream)

    def global_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> ComponentDeclarer:
        """All tuples go to the first task."""
        return self.grouping(component, GlobalGrouping(), stream)

    def direct_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> ComponentDeclarer:
        """The emitter names the task; the stream has to be one of `direct_streams`."""
        return self.grouping(component, DirectGrouping(), stream)

    def local_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> ComponentDeclarer:
        """A tuple stays in the task where it is."""
        return self.grouping(component, LocalGrouping(), stream)

    none_grouping = local_grouping

    def local_or_shuffle_grouping(
        self, component: str, stream: str = DEFAULT_STREAM
    ) -> ComponentDeclarer:
        """A tuple stays where it is if the bolt runs there; else tuples go evenly to all tasks."""
        return self.grouping(component, LocalOrShuffleGrouping(), stream)

    def partial_key_grouping(
        self, component: str, *fields: str, stream: str = DEFAULT_STREAM
    ) -> ComponentDeclarer:
        """Tuples with equal values in these fields go to two tasks, each to the one with less."""
        return self.grouping(component, PartialKeyGrouping(fields), stream)

    def custom_grouping(
        self, component: str, grouping: CustomStreamGrouping, stream: str = DEFAULT_STREAM
    ) -> ComponentDeclarer:
        """Tuples go to the tasks that your `CustomStreamGrouping` chooses."""
        return self.grouping(component, CustomGrouping(grouping), stream)

    def grouping(
        self, component: str, grouping: Grouping, stream: str = DEFAULT_STREAM
    ) -> ComponentDeclarer:
        """Read a stream by any grouping."""
        self._inputs.append(Subscription(component, stream, grouping))
        return self
