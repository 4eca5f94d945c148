"""The rule of sequence numbers: no other bytes under one whose last attempt had no answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sequitur.errors import OutcomeUnknownError
from sequitur.kafka.record_batch import Stamp

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from sequitur.kafka.producer_ids import PartitionAnswer
    from tests.support.fake_wire import FakeWire


_Numbers = tuple[str, int, Stamp]


class NumbersInDoubt:
    """Numbers that were given to other bytes although an attempt under them had no answer.

    Args:
        wire: The cluster. What is on its way arrives when a broker is asked.
    """

    def __init__(self, wire: FakeWire) -> None:
        wire.on_judged = self.on_judged
        self.reused: list[_Numbers] = []
        self._wire = wire
        self._in_doubt: dict[_Numbers, bytes] = {}
        self._produce = wire.produce
        wire.produce = self._watched  # type: ignore[method-assign, assignment]

    def on_judged(self) -> None:
        """Whoever asked knows what became of them."""
        self._in_doubt.clear()
        self._wire.deliver()

    def _watched(
        self, node: int, topics: list[tuple[str, list[tuple[int, bytes]]]]
    ) -> Awaitable[dict[tuple[str, int], PartitionAnswer]]:
        sent = {
            (topic, partition, Stamp.of(data)): data
            for topic, batches in topics
            for partition, data in batches
        }
        self.reused += [s for s, data in sent.items() if self._in_doubt.get(s, data) != data]
        answers = self._produce(node, topics)
        if not self._wire.reachable:  # its sender may not live to see it
            self._in_doubt |= sent
        return self._answered(answers, sent)

    async def _answered(
        self,
        answers: Awaitable[dict[tuple[str, int], PartitionAnswer]],
        sent: dict[_Numbers, bytes],
    ) -> dict[tuple[str, int], PartitionAnswer]:
        try:
            return await answers
        except OutcomeUnknownError:
            self._in_doubt |= sent
            raise
