"""The real wire for tasks that write, on a bad day: answers are lost, and requests never leave."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.errors import OutcomeUnknownError, RetriableError
from sequitur.kafka import connections
from sequitur.kafka.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

_NOT_SENT = 0.1
_LOST = 0.3
_LATE = 0.4


class FaultyWire(Wire):
    """`Wire`, of whose produce requests some are not sent, and some have no answer."""

    faults = random.Random(1)
    happened = 0
    """How often, since the test began."""

    def produce(self, node: int, topics: list[tuple[str, list[tuple[int, bytes]]]]) -> Any:
        """Send it, or do not; its answer may get lost, before the broker has it or after."""
        fate = self.faults.random()
        if fate > _LATE:
            return super().produce(node, topics)
        FaultyWire.happened += 1
        if fate < _NOT_SENT:
            raise RetriableError("the test has cut the connection")
        return _lost(super().produce(node, topics), at_once=fate > _LOST)


async def _lost(answers: Awaitable[Any], *, at_once: bool) -> Any:
    answered = asyncio.ensure_future(answers)
    answered.add_done_callback(lambda one: one.cancelled() or one.exception())
    if not at_once:
        await asyncio.wait([answered])
    raise OutcomeUnknownError("the test has lost the answer")


@contextlib.contextmanager
def faulty_wires(seed: int) -> Iterator[None]:
    """Have new connections of tasks be faulty; whoever has none yet gets such ones."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(connections, "Wire", FaultyWire)
        patched.setattr(connections, "_kept", {})
        patched.setattr(FaultyWire, "faults", random.Random(seed))
        patched.setattr(FaultyWire, "happened", 0)
        yield
        for kept in vars(connections)["_kept"].values():
            kept.close()
