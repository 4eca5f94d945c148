"""A Kafka transaction on one output partition: encoded batches, and one offset.

The protocol is KIP-98's, as brokers of every version speak it: `InitProducerId` takes the
transactional id (which aborts what another holder had open, and fences it), `AddPartitionsToTxn`,
batches, `AddOffsetsToTxn` with `TxnOffsetCommit`, `EndTxn`. The first batch goes alone, then up to
five are in flight; they go again, byte for byte and in order, when a leader moves or a connection
breaks, and the broker knows those it has by their sequence.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)

from sequitur.consumer import commits_group
from sequitur.pipelines._errors import (
    TransactionError,
    TransactionFencedError,
    TransactionOutcomeError,
)
from sequitur.pipelines.kafka.coordinators import error_of
from sequitur.producer import BrokerError, RetriableError
from sequitur.producer.kafka.error_codes import Action, Request, action_of
from sequitur.producer.kafka.init_producer_id import InitProducerIdRequest
from sequitur.producer.kafka.record_batch import Stamp, transactional_batch
from sequitur.producer.kafka.wire import CoordinatorKind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sequitur.consumer import OutputPartition
    from sequitur.pipelines.kafka.coordinators import Coordinators
    from sequitur.pipelines.rows.record_batches import KafkaBatch
    from sequitur.producer.kafka.produce_answers import PartitionAnswer
    from sequitur.producer.kafka.wire import Wire

_Answers: TypeAlias = "dict[tuple[str, int], PartitionAnswer]"

_IN_FLIGHT: Final = 5
"""As many batches of a producer as a broker remembers."""


@dataclass(frozen=True, slots=True)
class TransactionNames:
    """The names of a transaction.

    Attributes:
        transactional_id: The id, which has one holder at a time.
        group: The consumer group whose offset it commits.
        timeout_ms: The brokers abort it when it is open for longer.
    """

    transactional_id: str
    group: str
    timeout_ms: int

    @classmethod
    def of(cls, app: str, where: OutputPartition, timeout_ms: int) -> Self:
        """Return the names of a job's transactions on an output partition."""
        return cls(f"{app}.{where.topic}.{where.partition}", commits_group(app), timeout_ms)


class Transaction:
    """One attempt to write one partition; `open`, `send` as often as wanted, `commit` or `abort`.

    `_unanswered` holds the batches in flight, oldest first, with the futures of their answers.

    Args:
        wire: Connections to the brokers, started.
        coordinators: Asks on these connections.
        where: The partition.
        names: The names of the transaction.
    """

    def __init__(
        self,
        wire: Wire,
        coordinators: Coordinators,
        where: OutputPartition,
        names: TransactionNames,
    ) -> None:
        self._wire = wire
        self._coordinators = coordinators
        self._where = where
        self._names = names
        self._producer_id = self._epoch = -1
        self._sequence = 0
        self._unanswered: deque[tuple[bytes, asyncio.Future[_Answers]]] = deque()

    async def open(self) -> None:
        """Take the transactional id; a transaction that another holder left open is aborted.

        Raises:
            TransactionError: The brokers do not answer, or refuse.
        """
        request = InitProducerIdRequest(
            self._names.transactional_id, transaction_timeout_ms=self._names.timeout_ms
        )
        answer = await self._ask(request, lambda answer: answer.error_code)
        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch

    async def begin(self) -> None:
        """Make the partition part of the transaction; to be called before the first `send`.

        Raises:
            TransactionError: The brokers do not answer, or refuse.
            TransactionFencedError: A newer holder has the transactional id.
        """
        await self._know_the_leader()
        topic, partition = self._where
        await self._ask(
            AddPartitionsToTxnRequest(*self._identity(), [(topic, [partition])]),
            lambda answer: answer.errors[0][1][0][1],
        )

    async def send(self, batch: KafkaBatch) -> None:
        """Send a batch; returns while it is on its way.

        Args:
            batch: The batch.

        Raises:
            TransactionError: A batch is refused.
            TransactionFencedError: A newer holder has the transactional id.
        """
        stamp = Stamp(self._producer_id, self._epoch, self._sequence)
        raw = transactional_batch(
            batch.records, batch.rows, base_ms=batch.base_ms, max_ms=batch.max_ms, stamp=stamp
        )
        self._sequence += batch.rows
        while len(self._unanswered) >= _IN_FLIGHT:
            await self._await_oldest()
        try:
            self._unanswered.append((raw, await self._write(raw)))
        except RetriableError:
            await self._send_again(raw)
        if stamp.base_sequence == 0:
            # A partition without state of a producer accepts any sequence: if this batch were
            # refused for the moment, a later one could get in before it.
            await self._await_answers()
        # Once around the event loop, which writes requests and reads answers.
        await asyncio.sleep(0)

    async def commit(self, offset: int, metadata: str) -> None:
        """Wait for all batches, if there were any, and commit them with the group's offset.

        Raises:
            TransactionError: A batch is refused, or a request is: nothing is visible.
            TransactionFencedError: A newer holder has the transactional id: nothing is visible.
            TransactionOutcomeError: It is not known whether the commit was carried out.
        """
        await self._await_answers()
        topic, partition = self._where
        await self._ask(
            AddOffsetsToTxnRequest(*self._identity(), self._names.group),
            lambda answer: answer.error_code,
        )
        name, producer_id, epoch = self._identity()
        offsets = [(topic, [(partition, offset, metadata)])]
        await self._coordinators.ask(
            CoordinatorKind.GROUP,
            self._names.group,
            TxnOffsetCommitRequest(name, self._names.group, producer_id, epoch, offsets),
            lambda answer: answer.errors[0][1][0][1],
        )
        try:
            await self._end(commit=True)
        except TransactionFencedError:
            raise
        except TransactionError as error:
            raise TransactionOutcomeError(str(error)) from error

    async def abort(self) -> None:
        """Abort the transaction; best effort, as the next holder of the id aborts it anyway.

        Raises:
            TransactionError: The brokers do not answer, or refuse.
        """
        await self._await_in_flight()
        self._unanswered.clear()
        await self._end(commit=False)

    async def _end(self, *, commit: bool) -> None:
        await self._ask(
            EndTxnRequest(*self._identity(), commit),
            lambda answer: answer.error_code,
        )

    def _identity(self) -> tuple[str, int, int]:
        return self._names.transactional_id, self._producer_id, self._epoch

    async def _write(self, batch: bytes) -> asyncio.Future[_Answers]:
        """Write a batch to the partition's leader; return the future of its answer.

        Raises:
            RetriableError: Nothing was written.
        """
        topic, partition = self._where
        node = self._wire.leader(topic, partition)
        if node is None or not (self._wire.is_connected(node) or await self._wire.connect(node)):
            raise RetriableError(f"{topic}-{partition} has no leader that can be reached")
        batches = [(topic, [(partition, batch)])]
        return asyncio.ensure_future(
            self._wire.produce(node, batches, self._names.transactional_id)
        )

    async def _await_answers(self) -> None:
        while self._unanswered:
            await self._await_oldest()

    async def _await_oldest(self) -> None:
        _batch, answer = self._unanswered[0]
        if await self._is_taken(answer):
            self._unanswered.popleft()
        else:
            await self._send_again()

    async def _send_again(self, *more: bytes) -> None:
        """Send all batches without success again, one after the other, until each is accepted.

        What the broker has of them it answers as duplicates.
        """
        await self._await_in_flight()
        batches = [batch for batch, _answer in self._unanswered]
        self._unanswered.clear()
        for batch in (*batches, *more):
            attempts = self._coordinators.attempts(f"{_name(self._where)}: a batch is not accepted")
            while not await self._is_taken_now(batch):
                await attempts.pause()
                await self._wire.refresh([self._where.topic])

    async def _is_taken_now(self, batch: bytes) -> bool:
        try:
            return await self._is_taken(await self._write(batch))
        except RetriableError:
            return False

    async def _await_in_flight(self) -> None:
        """Wait until no batch is in flight."""
        answers = (answer for _batch, answer in self._unanswered)
        await asyncio.gather(*answers, return_exceptions=True)

    async def _is_taken(self, answer: Awaitable[_Answers]) -> bool:
        """Return whether a batch is in the log; False if a retry may help, else raise the error."""
        try:
            code = (await answer)[self._where].code
        except BrokerError:
            return False
        match action_of(Request.PRODUCE_IN_TRANSACTION, code):
            case Action.DONE:
                return True
            case Action.RETRY:
                return False
        raise error_of(f"{_name(self._where)}: a batch", code)

    async def _know_the_leader(self) -> None:
        topic, partition = self._where
        attempts = self._coordinators.attempts(f"{_name(self._where)} has no leader")
        while self._wire.leader(topic, partition) is None:
            await self._wire.refresh([topic])
            if self._wire.leader(topic, partition) is None:
                await attempts.pause()

    async def _ask(self, request: Any, code_of: Callable[[Any], int]) -> Any:
        key = self._names.transactional_id
        return await self._coordinators.ask(CoordinatorKind.TRANSACTION, key, request, code_of)


def _name(where: OutputPartition) -> str:
    return f"partition {where.partition} of {where.topic!r}"
