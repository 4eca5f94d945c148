"""Dead letters of a subscription: first written, and again if refused; then acked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from sequitur.consumer.subscription.dead_letters import DeadLetters
from sequitur.consumer.subscription.dispatch import DeadMessage, FailureCause
from sequitur.kafka.partition import SourcePartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sequitur.kafka.stored_batches import Record

WHERE = SourcePartition("orders", 0)
_TOO_LARGE = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)


class _Message:
    def __init__(self, offset: int) -> None:
        self.place = offset

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_000 + self.place

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return b"value"

    def headers(self) -> list[tuple[str, bytes]]:
        return [("name", b"1")]


class _Topic:
    """A topic that refuses some offsets, and tells of the others when it is asked to."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.opened = 0
        self.refused: dict[int, KafkaError] = {}
        self.answers = True
        self.written: list[tuple[int, str, Mapping[str, object]]] = []
        self._told: list[tuple[int, Callable[[KafkaError | None], None]]] = []

    def open(self) -> Any:
        self.opened += 1
        return self

    def add(
        self,
        where: SourcePartition,
        record: Record,
        subscription: str,
        told: Callable[[KafkaError | None], None],
        headers: Mapping[str, object],
    ) -> None:
        place = record.offset
        assert (where, record.value, [*record.headers]) == (WHERE, b"value", [("name", b"1")])
        error = self.refused.get(place)
        if error is not None and error.fatal():
            raise KafkaException(error)
        if error is None:
            self.written.append((place, subscription, headers))
        self._told.append((place, told))

    def settle(self, timeout_s: float) -> int:
        assert timeout_s > 0
        told, self._told = (self._told, []) if self.answers else ([], self._told)
        for place, one in told:
            one(self.refused.get(place))
        return len(self._told)

    def close(self) -> None:
        self._told = []


@pytest.fixture
def topic() -> _Topic:
    return _Topic()


@pytest.fixture
def letters(topic: _Topic) -> DeadLetters:
    return DeadLetters("letters", "billing", topic.open, now_s=lambda: topic.now_s)


def _dead(*offsets: int) -> list[DeadMessage[Any]]:
    cause = FailureCause.ACK_TIMEOUT
    return [DeadMessage(WHERE, one, cast("Any", _Message(one)), 4, cause) for one in offsets]


def test_a_letter_says_why(letters: DeadLetters, topic: _Topic) -> None:
    """Reason, how often it was tried, and the record's time, as letters of jobs do."""
    assert letters.write([]) == []
    assert topic.opened == 0
    assert letters.write(_dead(7)) == [(WHERE, 7)]
    ((place, subscription, headers),) = topic.written
    assert (place, subscription) == (7, "billing")
    assert headers["sequitur-dlq-reason"] == "timeout"
    assert headers["sequitur-dlq-attempts"] == 4
    assert headers["sequitur-dlq-event-time-ms"] == 1_007
    assert "sequitur-dlq-failed-at-ms" in headers


def test_what_is_under_way_is_not_written_twice(letters: DeadLetters, topic: _Topic) -> None:
    """Brokers are slow: its message is acked when they have answered."""
    topic.answers = False
    assert letters.write(_dead(1, 2)) == []
    assert letters.write(_dead(1, 2)) == []
    topic.answers = True
    assert letters.write(_dead(1, 2, 3)) == [(WHERE, 1), (WHERE, 2), (WHERE, 3)]
    assert [one for one, *_ in topic.written] == [1, 2, 3]


@pytest.mark.promise("sub-dead-letters-subscription")
def test_a_letter_that_its_client_does_not_tell_of_is_written_by_another(
    letters: DeadLetters, topic: _Topic
) -> None:
    """After a minute; a client tells of each within half of it."""
    topic.answers = False
    assert letters.write(_dead(1)) == []
    topic.now_s = 60
    assert letters.write(_dead(1)) == []
    assert topic.opened == 1
    topic.answers, topic.now_s = True, 61
    assert letters.write(_dead(1)) == [(WHERE, 1)]
    assert topic.opened == 2


@pytest.mark.promise("sub-dead-letters-subscription")
def test_one_that_is_refused_holds_no_other(
    letters: DeadLetters, topic: _Topic, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried again after longer and longer, and told once a minute; never acked meanwhile."""
    topic.refused[1] = _TOO_LARGE
    assert letters.write(_dead(1, 2)) == [(WHERE, 2)]
    assert letters.write(_dead(1, 3)) == [(WHERE, 3)]
    topic.now_s = 1
    assert letters.write(_dead(1)) == []
    del topic.refused[1]
    topic.now_s = 2.9
    assert letters.write(_dead(1)) == []
    topic.now_s = 3
    assert letters.write(_dead(1)) == [(WHERE, 1)]
    (line,) = caplog.messages
    assert "billing: no dead letter of orders-0, offset 1, can be written to letters" in line
    assert topic.opened == 1


@pytest.mark.promise("sub-dead-letters-subscription")
@pytest.mark.parametrize("is_raised", [True, False])
def test_a_client_that_is_over_is_replaced(
    letters: DeadLetters, topic: _Topic, is_raised: bool
) -> None:
    """What was under way by it is written again: a letter may be there twice, and is never lost.

    A call may raise the error, as one that is fatal; of a message it is told by its code alone.
    """
    topic.refused[2] = KafkaError(KafkaError._FATAL, "fenced", fatal=is_raised)
    if not is_raised:
        topic.refused[3] = topic.refused[2]
    assert letters.write(_dead(1, 2, 3)) == [(WHERE, 1)]
    topic.refused.clear()
    topic.now_s = 1
    assert letters.write(_dead(2, 3)) == [(WHERE, 2), (WHERE, 3)]
    assert topic.opened == 2
    letters.close()
