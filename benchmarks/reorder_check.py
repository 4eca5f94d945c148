"""What a contender of the reorder benchmark wrote: counted, and looked through for order."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Final, cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

_BATCH: Final = 20_000
_PATIENCE_S: Final = 30.0
_POLL_S: Final = 0.2
_EVENT_TIME: Final = re.compile(rb'"occurred_at":([0-9]+)')


@dataclass(frozen=True, slots=True)
class Written:
    """What stands in a topic.

    Attributes:
        rows: Records.
        event_time_sum: Of all event times: two topics with the same rows agree in it.
        inversions: Records that come after a younger one of their key.
    """

    rows: int
    event_time_sum: int
    inversions: int


def read_written(bootstrap_servers: str, topic: str) -> Written:
    """Read what a topic holds now, as a reader with default settings gets it.

    Raises:
        RuntimeError: The broker sends no more, and the end is not reached.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 0,
            "group.id": "bench-check",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "queued.max.messages.kbytes": 1 << 16,
        }
    )
    partitions = consumer.list_topics(topic, timeout=_PATIENCE_S).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
    at_work = set(partitions)
    newest: dict[bytes, int] = {}
    rows = event_time_sum = inversions = 0
    heard_s = time.monotonic()
    try:
        while at_work:
            # Waits for so many, or so long: what is left at the end is fewer.
            messages = consumer.consume(_BATCH, timeout=_POLL_S)
            now_s = time.monotonic()
            if messages:
                heard_s = now_s
            elif now_s - heard_s > _PATIENCE_S:
                raise RuntimeError(f"{topic}: nothing heard for {_PATIENCE_S:g} s")
            for message in messages:
                error = message.error()
                if error is not None:
                    if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's public code, under this name
                        raise KafkaException(error)
                    at_work.discard(cast("int", message.partition()))
                    continue
                key, value = cast("bytes", message.key()), cast("bytes", message.value())
                found = _EVENT_TIME.search(value)
                if found is None:
                    raise RuntimeError(f"{topic}: a record without its event time: {value!r}")
                event_time_ms = int(found[1])
                rows += 1
                event_time_sum += event_time_ms
                before = newest.get(key, 0)
                if event_time_ms < before:
                    inversions += 1
                else:
                    newest[key] = event_time_ms
    finally:
        consumer.close()
    return Written(rows, event_time_sum, inversions)
