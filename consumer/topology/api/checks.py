"""Checks of a topology that need no data."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from sequitur.consumer.topology.api.topology import Component, KafkaOutput, Kind
from sequitur.errors import TopologyBuildError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sequitur.consumer.topology.api.tuple import Stream


def check_inputs(one: Component, components: Mapping[str, Component]) -> None:
    """Check that all a component reads is there, and fits its groupings."""
    if one.kind is Kind.SPOUT:
        return
    if not one.inputs:
        raise TopologyBuildError(f"{one.kind} {one.id!r} reads nothing: give it a grouping")
    for given in one.inputs:
        read = components.get(given.component)
        if read is None:
            raise TopologyBuildError(
                f"{one.kind} {one.id!r} reads {given.component!r}, which is not there"
            )
        stream = read.streams.get(given.stream)
        if stream is None:
            has = ", ".join(sorted(read.streams)) or "none"
            raise TopologyBuildError(
                f"{one.kind} {one.id!r} reads stream {given.stream!r} of {read.id!r}, "
                f"which has: {has}"
            )
        given.grouping.check(f"{one.kind} {one.id!r}", stream)
        if one.output is not None:
            _check_output(one, one.output, stream)
    given_twice = {(given.component, given.stream) for given in one.inputs}
    if len(given_twice) < len(one.inputs):
        raise TopologyBuildError(f"{one.kind} {one.id!r} reads a stream twice")


def _check_output(one: Component, output: KafkaOutput, stream: Stream) -> None:
    for name in (output.key, output.value, output.headers):
        if name is not None and name not in stream.index:
            raise TopologyBuildError(
                f"output {one.id!r} writes field {name!r} of {stream.title!r}, "
                f"whose fields are: {', '.join(stream.fields)}"
            )


def in_reading_order(components: Mapping[str, Component]) -> Sequence[Component]:
    """Return components, each behind those it reads."""
    done: dict[str, Component] = {}
    waiting = dict(components)
    while waiting:
        ready = [
            one for one in waiting.values() if all(given.component in done for given in one.inputs)
        ]
        if not ready:
            raise TopologyBuildError(f"components read each other in a cycle: {_cycle(waiting)}")
        for one in ready:
            done[one.id] = waiting.pop(one.id)
    return tuple(done.values())


def _cycle(waiting: Mapping[str, Component]) -> str:
    """Return one of the cycles, as text."""
    path: list[str] = []
    name = next(iter(waiting))
    while name not in path:
        path.append(name)
        name = next(one.component for one in waiting[name].inputs if one.component in waiting)
    return " reads ".join([*path[path.index(name) :], name])


def check_pickles(one: Component) -> None:
    """Check that a component can be sent to tasks."""
    groupings = [given.grouping for given in one.inputs]
    what: Any = (one.bolt if one.kind is Kind.BOLT else one.tracked, one.output, groupings)
    try:
        pickle.loads(pickle.dumps(what))  # noqa: S301 - what was just made
    except Exception as error:
        raise TopologyBuildError(
            f"{one.kind} {one.id!r} cannot be pickled, so it cannot be sent to tasks: {error} "
            "(functions and classes have to stand at the top of a module)"
        ) from error


def check_sendable(what: str, value: Any) -> None:
    """Check that a value can be sent to tasks."""
    try:
        pickle.loads(pickle.dumps(value))  # noqa: S301 - what was just made
    except Exception as error:
        raise TopologyBuildError(
            f"{what} cannot be pickled, so it cannot be sent to tasks: {error}"
        ) from error
