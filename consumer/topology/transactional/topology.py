"""A transactional topology: which of its bolts commit, and what they keep where."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sequitur.consumer.topology.api.topology import EVENT_FIELDS, Topology

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sequitur.consumer.topology.state.kinds import State
    from sequitur.consumer.topology.state.store import StateStore
    from sequitur.consumer.topology.transactional.attempt import TransactionAttempt


class OrderedStreamSpout:
    """The spout of a job: the ordered stream of its input topics, step by step.

    It is a transactional spout: a step's events are on disk before bolts are given any, so a
    transaction has the same events in each try.
    """

    fields = EVENT_FIELDS
    is_opaque = False


@dataclass(frozen=True, slots=True)
class TransactionalTopology(Topology):
    """A transactional topology that was checked.

    Attributes:
        committers: The bolts whose `finish_batch` belongs to the commit phase.
        states: By committer, its states by name.
        source: The spout; an `OrderedStreamSpout` in a job.
        parallelism: How many tasks the spout has, where that was said.
    """

    committers: frozenset[str] = frozenset()
    states: Mapping[str, Mapping[str, State]] = field(default_factory=dict)
    source: Any = None
    parallelism: int | None = None

    @property
    def is_transactional(self) -> bool:
        """See `Topology`."""
        return True

    @property
    def commit_phase(self) -> frozenset[str]:
        """The committers, and what reads them: these have their whole batch when it is committed.

        See `Topology`.
        """
        found = set(self.committers)
        for bolt in self.bolts:  # each stands behind those it reads
            if any(one.component in found for one in bolt.inputs):
                found.add(bolt.id)
        return frozenset(found)

    @property
    def commit_signature(self) -> dict[str, list[str]]:
        """What the commit phase takes for granted of what was prepared: by name, what it is."""
        found = {}
        for bolt in self.bolts:
            if bolt.id not in self.commit_phase:
                continue
            for one in bolt.inputs:
                name = f"stream {one.stream!r} of {one.component!r}, read by {bolt.id!r}"
                found[name] = list(self.components[one.component].streams[one.stream].fields)
        for component, states in self.states.items():
            for name, state in states.items():
                types = (state.key.__name__, state.value.__name__)
                found[f"state {name!r} of {component!r}"] = [state.name, state.kind.value, *types]
        return found

    def values_of(self, event: tuple[Any, ...]) -> tuple[Any, ...]:
        """See `Topology`; what another spout than the ordered stream emits is an event's value."""
        values: tuple[Any, ...] = event if self.is_of_ordered_stream else event[1]
        return values

    @property
    def is_of_ordered_stream(self) -> bool:
        """Whether its spout is the ordered stream."""
        return isinstance(self.source, OrderedStreamSpout)


def create_states(topology: TransactionalTopology, epoch: str, least_attempt: int = 0) -> None:
    """Make what the states of a topology need in their databases, or check that it is there."""
    for store, owners in _states_by_store(topology).items():
        store.create(owners, topology.name, epoch, least_attempt)


def give_up(topology: TransactionalTopology, epoch: str, last: TransactionAttempt) -> bool:
    """Have databases refuse what tries at a transaction up to this one have not committed yet."""
    stores = _states_by_store(topology)
    return not any(store.give_up(topology.name, epoch, last) for store in stores)


def _states_by_store(
    topology: TransactionalTopology,
) -> dict[StateStore, dict[str, list[State]]]:
    by_store: dict[StateStore, dict[str, list[State]]] = {}
    for component, states in topology.states.items():
        for state in states.values():
            by_store.setdefault(state.store, {}).setdefault(component, []).append(state)
    return by_store
