"""The real wire, whose connections break when a test wants them to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

from sequitur.errors import OutcomeUnknownError, RetriableError
from sequitur.kafka.record_batch import Stamp
from sequitur.kafka.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from sequitur.kafka.identity import Identity


class LossyWire(Wire):
    """`Wire`, but its answers may be lost.

    Attributes:
        mode: `whole`: as it is. `lose`: the next request is carried out, its answer is lost, and
            from then on it is `cut`: nothing is sent any more.
        lost: Set once an answer was lost.
        identity: The producer id that it got, if it asked for one.
        base_sequences: Of each batch that it sent, in order.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.mode: Literal["whole", "lose", "cut"] = "whole"
        self.lost = asyncio.Event()
        self.identity: Identity | None = None
        self.base_sequences: list[int] = []

    async def new_producer_id(self) -> Identity:
        self.identity = await super().new_producer_id()
        return self.identity

    async def claim(self, transactional_id: str, held: Identity | None) -> Identity:
        self.identity = await super().claim(transactional_id, held)
        return self.identity

    def produce(
        self,
        node: int,
        topics: list[tuple[str, list[tuple[int, bytes]]]],
    ) -> Any:
        """Send it, or lose its answer, or do nothing."""
        if self.mode == "cut":
            raise RetriableError("the test has cut the connection")
        self.base_sequences += [
            Stamp.of(data).base_sequence for _, batches in topics for _, data in batches
        ]
        answers = super().produce(node, topics)
        if self.mode == "whole":
            return answers
        self.mode = "cut"
        return self._lose(answers)

    async def _lose(self, answers: Awaitable[Any]) -> Any:
        await answers
        self.lost.set()
        raise OutcomeUnknownError("the test has lost the answer")
