"""Routes emitted tuples: to tasks here, to tasks elsewhere, to outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sequitur.consumer.topology.api.groupings import Emitter
from sequitur.consumer.topology.api.stable_hash import hash_of_version
from sequitur.consumer.topology.engine.emission import (
    Elsewhere,
    Here,
    Output,
    OutputRecord,
    Sent,
    encoder,
)
from sequitur.kafka.record_format import RecordLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sequitur.consumer.topology.api.groupings import Chooser, Grouping
    from sequitur.consumer.topology.api.topology import Component, Topology
    from sequitur.consumer.topology.api.tuple import Stream
    from sequitur.consumer.topology.engine.rules import Placement, Rules
    from sequitur.consumer.topology.engine.runner import Runner
    from sequitur.consumer.topology.engine.user_code import UserCode
    from sequitur.consumer.topology.settling.root import Root


class Wiring:
    """Connects the tasks of an executor with each other, with other processes, and with outputs."""

    def __init__(
        self,
        topology: Topology,
        placement: Placement,
        rules: Rules,
        runners: Mapping[tuple[str, int], Runner],
        *,
        write: Callable[[str, OutputRecord], None],
        send: Callable[[str, int, Sent], None] | None,
        shared: list[tuple[Root, ...]],
        users: UserCode,
        turn: int = 0,
    ) -> None:
        self.is_whole = True
        self._turn = turn
        self._topology = topology
        self._placement = placement
        self._rules = rules
        self._runners = runners
        self._write = write
        self._send = send
        self._shared = shared
        self._users = users
        self._emitted: list[Callable[[], int]] = []
        for (component, task), runner in runners.items():
            streams = [
                replace(one, task=task) for one in topology.components[component].streams.values()
            ]
            runner.connect({one.name: (one, self.targets(one, task)) for one in streams})

    @property
    def emitted(self) -> int:
        """How many records outputs were given to write."""
        return sum(count() for count in self._emitted)

    def targets(self, stream: Stream, here: int) -> list[Here | Elsewhere | Output]:
        """Return the readers of a stream."""
        targets: list[Here | Elsewhere | Output] = []
        for reader, grouping in self._topology.readers(stream.component, stream.name):
            if reader.output is not None:
                targets.append(self._output(reader, stream))
                continue
            tasks = self._placement.tasks[reader.id]
            emitter = Emitter(
                here,
                self._placement.tasks[stream.component],
                self._turn,
                self._topology.name,
                hash_of_version(self._rules.hash_version),
            )
            hosted = self._placement.here.get(reader.id, ())
            if hosted:
                runners = [self._runners[reader.id, task] for task in hosted]
                alone = len(hosted) < tasks
                choose = (
                    (lambda _v, _t: (0,))
                    if alone
                    else self._chooser(grouping, stream, tasks, emitter, reader.id)
                )
                targets.append(Here(runners, choose))
                continue
            self.is_whole = False
            choose = self._chooser(grouping, stream, tasks, emitter, reader.id)
            targets.append(Elsewhere(self._sender(reader.id), choose, reader.id))
        return targets

    def _chooser(
        self, grouping: Grouping, stream: Stream, tasks: int, emitter: Emitter, reader: str
    ) -> Chooser:
        choose = grouping.chooser(stream, tasks, emitter, reader)
        return self._users.bounded(choose) if grouping.is_users else choose

    def _sender(self, component: str) -> Callable[[int, Sent], None]:
        send = self._send
        if send is None:
            raise ValueError(f"tasks of {component!r} run elsewhere, but `send` is not given")
        return lambda task, sent: send(component, task, sent)

    def _output(self, reader: Component, stream: Stream) -> Output:
        write, shared, component = self._write, self._shared, reader.id
        # As `OutputRecord(root, *record)`, which goes through a function in Python.
        made, emitted = tuple.__new__, 0

        def put_out_one(root: Root, record: Any) -> None:
            nonlocal emitted
            emitted += 1
            write(component, made(OutputRecord, (root, *record)))

        def put_out(roots: Sequence[Root], record: Any) -> None:
            root = roots[0]
            if len(roots) > 1:
                # It waits for those that somebody waits for.
                roots = [one for one in roots if one.is_tracked] or roots
                root = max(roots, key=lambda one: one.order)
                shared.append(tuple(roots))
            put_out_one(root, record)

        self._emitted.append(lambda: emitted)
        assert reader.output is not None
        limit = self._rules.limits.get(component, RecordLimit())
        encode = encoder(
            component,
            reader.output,
            stream,
            limit,
            is_transactional=self._topology.is_transactional,
        )
        return Output(component, encode, put_out, put_out_one)
