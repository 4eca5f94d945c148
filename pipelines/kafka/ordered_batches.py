"""Batches to one output partition that are laid out already: in order, each taken once.

The first batch goes alone, then up to five are in flight; they go again, byte for byte and in
order, when a leader moves or a connection breaks, and the broker knows those it has by their
sequence.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, TypeAlias

from sequitur.pipelines._errors import TransactionError
from sequitur.pipelines.kafka.coordinators import error_of
from sequitur.producer import BrokerError, FatalError, RetriableError
from sequitur.producer.kafka.error_codes import Action, Request, action_of
from sequitur.producer.kafka.record_batch import Stamp, idempotent_batch, transactional_batch

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from sequitur.consumer import OutputPartition
    from sequitur.pipelines.kafka.coordinators import Coordinators
    from sequitur.pipelines.rows.record_layout import KafkaBatch
    from sequitur.producer.kafka.produce_answers import PartitionAnswer
    from sequitur.producer.kafka.wire import Wire

_Answers: TypeAlias = "dict[tuple[str, int], PartitionAnswer]"

_IN_FLIGHT: Final = 5
"""As many batches of a producer as a broker remembers."""


class OrderedBatches:
    """One attempt to write one partition, under a producer id that nobody else has.

    `open`, `begin`, `send` as often as wanted, `settle`. What an attempt has written before it
    failed stays: the next one writes it again.

    `_unanswered` holds the batches that are on their way, oldest first, with their answers to be.

    Args:
        wire: Connections to the brokers, started.
        coordinators: Asks on these connections.
        where: The partition.
        transactional_id: That of the transaction that the batches are part of, if they are.
    """

    def __init__(
        self,
        wire: Wire,
        coordinators: Coordinators,
        where: OutputPartition,
        transactional_id: str | None = None,
    ) -> None:
        self._wire = wire
        self._coordinators = coordinators
        self._where = where
        self._transactional_id = transactional_id
        self._laid_out = idempotent_batch if transactional_id is None else transactional_batch
        self._producer_id = self._epoch = -1
        self._sequence = 0
        self._unanswered: deque[tuple[bytes, asyncio.Future[_Answers]]] = deque()

    async def open(self) -> None:
        """Get a producer id.

        Raises:
            TransactionError: The brokers do not answer, or refuse.
        """
        attempts = self._coordinators.attempts(f"{self._name}: there is no producer id")
        while True:
            try:
                identity = await self._wire.new_producer_id()
            except RetriableError:
                await attempts.pause()
            except FatalError as error:
                raise TransactionError(f"{self._name}: a producer id: {error}") from error
            else:
                self._producer_id, self._epoch = identity.producer_id, identity.epoch
                return

    async def begin(self) -> None:
        """Get to know the partition's leader; to be called before the first `send`.

        Raises:
            TransactionError: It has none.
        """
        attempts = self._coordinators.attempts(f"{self._name} has no leader")
        topic, partition = self._where
        while self._wire.leader(topic, partition) is None:
            await self._wire.refresh([topic])
            if self._wire.leader(topic, partition) is None:
                await attempts.pause()

    async def send(self, batch: KafkaBatch) -> None:
        """Send a batch; returns while it is on its way.

        Args:
            batch: The batch.

        Raises:
            TransactionError: A batch is not taken.
            TransactionFencedError: Someone newer has the transactional id.
        """
        stamp = Stamp(self._producer_id, self._epoch, self._sequence)
        raw = self._laid_out(
            batch.records, batch.rows, base_ms=batch.base_ms, max_ms=batch.max_ms, stamp=stamp
        )
        self._sequence += batch.rows
        while len(self._unanswered) >= _IN_FLIGHT or self._has_answer():
            await self._settle_oldest()
        try:
            self._unanswered.append((raw, await self._write(raw)))
        except RetriableError:
            await self._send_again(raw)
        if stamp.base_sequence == 0:
            # A partition that knows nothing of a producer takes any sequence: were this batch
            # refused for the moment, one after it could get in before it.
            await self.settle()
        # Once around the loop: what is to be written is, and answers are taken in.
        await asyncio.sleep(0)

    def _has_answer(self) -> bool:
        """Whether an answer is to be looked at before more is sent.

        Outside of transactions a broker may forget who sent a batch, and takes any sequence then:
        so nothing goes out behind one that is known to have failed.
        """
        is_alone = self._transactional_id is None
        return is_alone and bool(self._unanswered) and self._unanswered[0][1].done()

    async def _write(self, batch: bytes) -> asyncio.Future[_Answers]:
        """Write a batch to the partition's leader; its answer to be.

        Raises:
            RetriableError: Nothing was written.
        """
        topic, partition = self._where
        node = self._wire.leader(topic, partition)
        if node is None or not (self._wire.is_connected(node) or await self._wire.connect(node)):
            raise RetriableError(f"{topic}-{partition} has no leader that can be reached")
        batches = [(topic, [(partition, batch)])]
        return asyncio.ensure_future(self._wire.produce(node, batches, self._transactional_id))

    async def settle(self) -> None:
        """Wait until all batches are taken.

        Raises:
            TransactionError: A batch is not taken.
        """
        while self._unanswered:
            await self._settle_oldest()

    async def give_up(self) -> None:
        """Wait for what is on its way, whatever becomes of it."""
        await self._silence()
        self._unanswered.clear()

    async def _settle_oldest(self) -> None:
        _batch, answer = self._unanswered[0]
        if await self._is_taken(answer):
            self._unanswered.popleft()
        else:
            await self._send_again()

    async def _send_again(self, *more: bytes) -> None:
        """Send all that has no good answer again, one after the other, until each is taken.

        The broker answers as a repeat what it has of them. One that was killed meanwhile knows the
        last of them alone: then the attempt fails, and the next one writes all again.
        """
        await self._silence()
        batches = [batch for batch, _answer in self._unanswered]
        self._unanswered.clear()
        for batch in (*batches, *more):
            attempts = self._coordinators.attempts(f"{self._name}: a batch is not taken")
            while not await self._is_taken_now(batch):
                await attempts.pause()
                await self._wire.refresh([self._where.topic])

    async def _is_taken_now(self, batch: bytes) -> bool:
        try:
            return await self._is_taken(await self._write(batch))
        except RetriableError:
            return False

    async def _silence(self) -> None:
        """Wait until nothing is on its way any more."""
        answers = (answer for _batch, answer in self._unanswered)
        await asyncio.gather(*answers, return_exceptions=True)

    async def _is_taken(self, answer: Awaitable[_Answers]) -> bool:
        """Whether a batch is in the log; if not, whether it is worth sending again is an error."""
        try:
            code = (await answer)[self._where].code
        except BrokerError:
            return False
        match action_of(Request.PRODUCE_IN_TRANSACTION, code):
            case Action.DONE:
                return True
            case Action.RETRY:
                return False
        raise error_of(f"{self._name}: a batch", code)

    @property
    def _name(self) -> str:
        return f"partition {self._where.partition} of {self._where.topic!r}"
