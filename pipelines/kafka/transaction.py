"""A Kafka transaction on one output partition: encoded batches, and one offset.

The protocol is KIP-98's, as brokers of every version speak it: `InitProducerId` takes the
transactional id (which aborts what another holder had open, and fences it), `AddPartitionsToTxn`,
batches, `AddOffsetsToTxn` with `TxnOffsetCommit`, `EndTxn`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

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
from sequitur.pipelines.kafka.ordered_batches import OrderedBatches
from sequitur.producer.kafka.init_producer_id import InitProducerIdRequest
from sequitur.producer.kafka.wire import CoordinatorKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.consumer import OutputPartition
    from sequitur.pipelines.kafka.coordinators import Coordinators
    from sequitur.producer.kafka.wire import Wire


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


class Transaction(OrderedBatches):
    """One attempt to write one partition; `open`, `send` as often as wanted, `commit` or `abort`.

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
        super().__init__(wire, coordinators, where, names.transactional_id)
        self._names = names

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
        await super().begin()
        topic, partition = self._where
        await self._ask(
            AddPartitionsToTxnRequest(*self._identity(), [(topic, [partition])]),
            lambda answer: answer.errors[0][1][0][1],
        )

    async def commit(self, offset: int, metadata: str) -> None:
        """Wait for all batches, if there were any, and commit them with the group's offset.

        Raises:
            TransactionError: A batch is refused, or a request is: nothing is visible.
            TransactionFencedError: A newer holder has the transactional id: nothing is visible.
            TransactionOutcomeError: It is not known whether the commit was carried out.
        """
        await self.settle()
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
        await self.give_up()
        await self._end(commit=False)

    async def _end(self, *, commit: bool) -> None:
        await self._ask(
            EndTxnRequest(*self._identity(), commit),
            lambda answer: answer.error_code,
        )

    def _identity(self) -> tuple[str, int, int]:
        return self._names.transactional_id, self._producer_id, self._epoch

    async def _ask(self, request: Any, code_of: Callable[[Any], int]) -> Any:
        key = self._names.transactional_id
        return await self._coordinators.ask(CoordinatorKind.TRANSACTION, key, request, code_of)
