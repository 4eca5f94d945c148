"""Headers that others wrote: their names may be of any bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from sequitur.errors import UnansweredError, UnreadableHeadersError
from sequitur.kafka.arrivals import Arrivals, headers_of, sizes_of
from sequitur.kafka.partition import SourcePartition
from sequitur.kafka.stored_batches import LogRecord
from sequitur.producer import KafkaSettings
from tests.support.odd_headers import READ_BY_JAVA, send_odd_headers
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from confluent_kafka import Message

    from sequitur.kafka.reader import Spans

_TOPIC = "names"
_WHERE = SourcePartition(_TOPIC, 0)
_PLAIN = 100
"""So often a call is made before Python takes it for one that need not be checked."""


@pytest.fixture
def address() -> Iterator[str]:
    player = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = player.list_topics(_TOPIC, timeout=PATIENCE_S).brokers.values()
    yield f"{broker.host}:{broker.port}"
    player.flush(0)


@pytest.fixture
async def reader(address: str) -> AsyncIterator[Consumer]:
    """A consumer of records, of which the last two have a header with an odd name."""
    await send_odd_headers(address, _TOPIC, [b"value"] * (_PLAIN + 2), plain=_PLAIN)
    found = Consumer({**KafkaSettings(bootstrap_servers=address).librdkafka(), "group.id": "names"})
    found.assign([TopicPartition(_TOPIC, 0, 0)])
    yield found
    found.close()


class _Reader:
    """Stand for the reader of a broker that knows our requests: it has so many answers."""

    def __init__(self, *answers: Sequence[int] | None) -> None:
        self.asked: list[Spans] = []
        self._answers = [*answers]

    def rows(self, spans: Spans) -> Iterator[tuple[SourcePartition, LogRecord]]:
        self.asked.append(spans)
        answer = self._answers.pop(0)
        if answer is None:
            raise UnansweredError("no broker answers")
        for offset in answer:
            yield _WHERE, LogRecord(offset, 1, b"key", b"value", ((READ_BY_JAVA, b"1"),))


def _arrivals(address: str, consumer: Consumer, reader: _Reader) -> Arrivals:
    return Arrivals(consumer, KafkaSettings(bootstrap_servers=address), reader.rows)


def _all(arrivals: Arrivals) -> list[Message]:
    found: list[Message] = []
    while len(found) < _PLAIN + 2:
        found += arrivals.next(1000, timeout_s=PATIENCE_S)
    return found


@pytest.mark.promise("subscribe-header-no-utf-8")
def test_header_whose_name_is_no_utf8_is_read_once_more(address: str, reader: Consumer) -> None:
    """As Java's client reads it; only such records are asked for, and of these all at once."""
    again = _Reader([_PLAIN, _PLAIN + 1])
    found = _all(_arrivals(address, reader, again))
    assert [headers_of(one) for one in found[:_PLAIN]] == [[("e", b"1")]] * _PLAIN
    assert [headers_of(one) for one in found[_PLAIN:]] == [[(READ_BY_JAVA, b"1")]] * 2
    assert [headers_of(one) for one in found[_PLAIN:]] == [[(READ_BY_JAVA, b"1")]] * 2
    assert again.asked == [{_WHERE: (_PLAIN, _PLAIN + 2)}]
    assert sizes_of(found[-1:]) == len(b"key") + len(b"value") + len(READ_BY_JAVA) + 1


@pytest.mark.promise("subscribe-header-no-utf-8")
def test_no_record_is_lost_while_no_broker_answers(address: str, reader: Consumer) -> None:
    """What had come with such a record comes with the next call."""
    arrivals = _arrivals(address, reader, _Reader(None, None, [_PLAIN, _PLAIN + 1]))
    for _ in range(2):
        with pytest.raises(UnansweredError):
            _all(arrivals)
    assert len(_all(arrivals)) == _PLAIN + 2


def test_record_that_is_deleted_meanwhile_is_named(address: str, reader: Consumer) -> None:
    """The next reader does not get it: it ends nobody for good."""
    arrivals = _arrivals(address, reader, _Reader([_PLAIN]))
    with pytest.raises(UnreadableHeadersError, match=f"names-0, offset {_PLAIN + 1}: a header"):
        _all(arrivals)
