"""Headers that others wrote: their names may be of any bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from sequitur.errors import UnreadableHeadersError
from sequitur.kafka.records import headers_of
from sequitur.producer import KafkaSettings
from tests.support.odd_headers import send_odd_headers
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOPIC = "names"
_PLAIN = 100
"""So often a call is made before Python takes it for one that need not be checked."""


@pytest.fixture
def address() -> Iterator[str]:
    player = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = player.list_topics(_TOPIC, timeout=PATIENCE_S).brokers.values()
    yield f"{broker.host}:{broker.port}"
    player.flush(0)


async def test_header_whose_name_is_no_utf8_is_refused_by_its_record(address: str) -> None:
    """The client's own error names nothing."""
    await send_odd_headers(address, _TOPIC, [b"value"] * (_PLAIN + 1), plain=_PLAIN)
    kafka = KafkaSettings(bootstrap_servers=address)
    reader = Consumer({**kafka.librdkafka(), "group.id": "names"})
    try:
        reader.assign([TopicPartition(_TOPIC, 0, 0)])
        *plain, last = reader.consume(_PLAIN + 1, timeout=PATIENCE_S)
        assert [headers_of(message) for message in plain] == [[("e", b"1")]] * _PLAIN
        with pytest.raises(UnreadableHeadersError, match="names-0, offset 100: a header has"):
            headers_of(last)
    finally:
        reader.close()
