"""A transaction on a wire that fails as it is told: what is sent again, and what is given up."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from sequitur.consumer import OutputPartition
from sequitur.pipelines._errors import (
    TransactionError,
    TransactionFencedError,
    TransactionOutcomeError,
)
from sequitur.pipelines.kafka.coordinators import Coordinators
from sequitur.pipelines.kafka.ordered_batches import OrderedBatches
from sequitur.pipelines.kafka.transaction import Transaction, TransactionNames
from sequitur.pipelines.rows.record_layout import KafkaBatch
from sequitur.producer import FatalError, OutcomeUnknownError, RetriableError
from sequitur.producer.kafka.identity import Identity
from sequitur.producer.kafka.produce_answers import PartitionAnswer
from sequitur.producer.kafka.record_batch import Stamp, records_of
from tests.support.record_bytes import record_bytes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from sequitur.producer.kafka.wire import Wire

_WHERE = OutputPartition("ordered", 2)
_NAMES = TransactionNames("app.ordered.2", "app.commits", 60_000)
_NODE = 7


class _Refused(Exception):  # noqa: N818 - it stands for a connection that cannot be had
    """The batch cannot even be written."""


@dataclass(slots=True)
class _Broker:
    """Takes batches as a broker does: in order of their sequences, each once."""

    outcomes: deque[int | type[_Refused] | None] = field(default_factory=deque)
    codes: dict[str, deque[int]] = field(default_factory=dict)
    log: list[bytes] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    attempts: int = 0
    transactional_id: str | None = _NAMES.transactional_id
    no_ids: deque[Exception] = field(default_factory=deque)

    async def new_producer_id(self) -> Identity:
        if self.no_ids:
            raise self.no_ids.popleft()
        return Identity(11, 3)

    def leader(self, _topic: str, _partition: int) -> int:
        return _NODE

    def is_connected(self, _node: int) -> bool:
        return True

    async def refresh(self, _topics: Iterable[str]) -> bool:
        return True

    async def coordinator(self, _kind: object, _key: str) -> int:
        return _NODE

    async def ask(self, _node: int, request: Any) -> Any:
        name = type(request).__name__.removesuffix("Request")
        self.asked.append(name)
        codes = self.codes.get(name)
        code = codes.popleft() if codes else 0
        if code == -1:
            raise RetriableError("no answer")
        return SimpleNamespace(
            error_code=code,
            producer_id=11,
            producer_epoch=3,
            errors=[("ordered", [(2, code)])],
        )

    def produce(
        self, _node: int, topics: list[Any], transactional_id: str | None
    ) -> Awaitable[dict[tuple[str, int], PartitionAnswer]]:
        assert transactional_id == self.transactional_id
        ((_topic, ((_partition, batch),)),) = topics
        self.attempts += 1
        outcome = self.outcomes.popleft() if self.outcomes else 0
        if outcome is _Refused:
            raise RetriableError("no connection")
        return self._answer(batch, cast("int | None", outcome))

    async def _answer(
        self, batch: bytes, outcome: int | None
    ) -> dict[tuple[str, int], PartitionAnswer]:
        # None: taken, but the answer gets lost.
        if outcome in {0, None}:
            outcome, lost = self._append(batch), outcome is None
            if lost:
                raise OutcomeUnknownError("no answer")
        return {("ordered", 2): PartitionAnswer(outcome or 0, 0)}

    def _append(self, batch: bytes) -> int:
        if batch in self.log:
            return 0
        held = sum(len(records_of(known)) for known in self.log)
        # A partition that knows nothing of the producer takes any sequence.
        if self.log and Stamp.of(batch).base_sequence != held:
            return 45  # OUT_OF_ORDER_SEQUENCE_NUMBER
        self.log.append(batch)
        return 0

    def values(self) -> list[bytes | None]:
        return [record.value for batch in self.log for record in records_of(batch)]


def _transaction(broker: _Broker, *, patience_s: float = 30.0) -> Transaction:
    wire = cast("Wire", broker)
    return Transaction(wire, Coordinators(wire, patience_s=patience_s), _WHERE, _NAMES)


async def _send(transaction: OrderedBatches, count: int) -> list[bytes]:
    """As many batches of two records."""
    values = [b"%d" % number for number in range(2 * count)]
    for start in range(0, len(values), 2):
        data = b"".join(record_bytes(n, b"k", values[start + n]) for n in range(2))
        await transaction.send(KafkaBatch(memoryview(data), 2, 5, 5))
    return values


async def test_requests_are_in_their_order() -> None:
    """Take the id, add the partition, send, add the group, commit its offset, end."""
    broker = _Broker()
    transaction = _transaction(broker)
    await transaction.open()
    await transaction.begin()
    values = await _send(transaction, 20)
    await transaction.commit(5, "metadata")
    assert broker.asked == [
        "InitProducerId",
        "AddPartitionsToTxn",
        "AddOffsetsToTxn",
        "TxnOffsetCommit",
        "EndTxn",
    ]
    assert broker.values() == values
    assert {(Stamp.of(b).producer_id, Stamp.of(b).epoch) for b in broker.log} == {(11, 3)}


@pytest.mark.parametrize(
    "outcome",
    [6, 19, 7, None, _Refused],
    ids=["leader moved", "too few replicas", "timed out", "answer lost", "no connection"],
)
@pytest.mark.parametrize("at", [0, 3, 9])
async def test_batch_that_fails_is_sent_again_before_later_ones(outcome: Any, at: int) -> None:
    """Whatever was on its way with it goes again, too: all is there once, and in order."""
    broker = _Broker(outcomes=deque([0] * at + [outcome, outcome]))
    transaction = _transaction(broker)
    await transaction.open()
    values = await _send(transaction, 12)
    await transaction.commit(5, "")
    assert broker.values() == values
    assert broker.attempts > 12


@pytest.mark.parametrize(("code", "error"), [
    (47, TransactionFencedError),
    (90, TransactionFencedError),
    (48, TransactionError),
    (10, TransactionError),
    (29, TransactionError),
])  # fmt: skip
async def test_batch_that_is_refused_ends_it(code: int, error: type[TransactionError]) -> None:
    """What no repeat can change is an error at once, and the transaction can be aborted."""
    broker = _Broker(outcomes=deque([0, code]))
    transaction = _transaction(broker)
    await transaction.open()
    await _send(transaction, 3)
    with pytest.raises(error) as raised:
        await transaction.commit(5, "")
    assert type(raised.value) is error
    await transaction.abort()
    assert broker.asked == ["InitProducerId", "EndTxn"]


@pytest.mark.parametrize("code", [14, 15, 16, 51, 3, -1])
@pytest.mark.parametrize("request_name", ["InitProducerId", "TxnOffsetCommit", "EndTxn"])
async def test_coordinator_that_is_not_ready_is_asked_again(code: int, request_name: str) -> None:
    """It moves, has just come up, ends another transaction, or gives no answer: it passes."""
    broker = _Broker(codes={request_name: deque([code, code])})
    transaction = _transaction(broker)
    await transaction.open()
    await transaction.commit(5, "")
    assert broker.asked.count(request_name) == 3


async def test_commit_without_an_answer_is_not_taken_for_a_failure() -> None:
    """No answer to the end of the transaction: it may have been carried out."""
    broker = _Broker(codes={"EndTxn": deque([-1] * 1000)})
    transaction = _transaction(broker, patience_s=0.05)
    await transaction.open()
    with pytest.raises(TransactionOutcomeError, match="EndTxn has no answer"):
        await transaction.commit(5, "")


async def test_fencing_at_the_end_is_told_as_such() -> None:
    """A newer attempt has the name when we want to commit: nothing of ours is visible."""
    broker = _Broker(codes={"EndTxn": deque([47])})
    transaction = _transaction(broker)
    await transaction.open()
    with pytest.raises(TransactionFencedError, match=r"app.ordered.2: EndTxn: fenced"):
        await transaction.commit(5, "")


def _batches(broker: _Broker) -> OrderedBatches:
    wire = cast("Wire", broker)
    return OrderedBatches(wire, Coordinators(wire, patience_s=30.0), _WHERE)


@pytest.mark.parametrize("outcome", [6, None, _Refused])
async def test_batches_without_a_transaction_are_there_once_and_in_order(outcome: Any) -> None:
    """They go out under a producer id, and again where no good answer comes."""
    broker = _Broker(
        outcomes=deque([0] * 3 + [outcome, outcome]),
        transactional_id=None,
        no_ids=deque([RetriableError("no broker answers")]),
    )
    batches = _batches(broker)
    await batches.open()
    await batches.begin()
    values = await _send(batches, 12)
    await batches.settle()
    assert broker.values() == values
    assert broker.asked == []
    assert {(Stamp.of(b).producer_id, b[22] & 0x10) for b in broker.log} == {(11, 0)}


async def test_batches_that_are_given_up_leave_nothing_on_its_way() -> None:
    """Whatever becomes of them; and who may not write is told so at once."""
    broker = _Broker(outcomes=deque([0, None]), transactional_id=None)
    batches = _batches(broker)
    await batches.open()
    await _send(batches, 2)
    await batches.give_up()
    await batches.settle()
    broker.no_ids.append(FatalError("no right"))
    with pytest.raises(TransactionError, match="no right"):
        await batches.open()
