"""Whether a topic takes a record."""

from __future__ import annotations

import random

import pytest

from sequitur.consumer.topology.api.builder import KafkaOutput
from sequitur.consumer.topology.api.tuple import Stream
from sequitur.consumer.topology.engine.plan import encoder
from sequitur.errors import EmitError
from sequitur.kafka.record_batch import Stamp, idempotent_batch
from sequitur.kafka.record_format import HEADER_SIZE, RecordLimit

_NOISE = random.Random(1).randbytes(5000)


@pytest.mark.promise("order-row-larger-output")
@pytest.mark.parametrize("size", range(4700, 5000, 7))
def test_what_is_taken_fits(size: int) -> None:
    """A record that is judged to be taken makes a batch that is not over the limit."""
    limit = RecordLimit(4900)
    value = _NOISE[:size]
    batch = idempotent_batch(
        memoryview(bytes(20) + value), 1, base_ms=0, max_ms=0, stamp=Stamp(1, 1, 0)
    )
    if limit.takes([value]):
        assert len(batch) <= limit.max_bytes
    assert limit.takes([value]) == (size <= limit.surely_bytes)
    assert limit.surely_bytes > limit.max_bytes - HEADER_SIZE - 150


@pytest.mark.promise("order-row-larger-output")
def test_compression_counts_where_the_broker_keeps_it() -> None:
    """Not where the topic has another compression of its own: its broker compresses it again."""
    record = [b"key", bytes(10_000)]
    assert RecordLimit.of({"max.message.bytes": "4000", "compression.type": "producer"}).takes(
        record
    )
    assert not RecordLimit.of({"max.message.bytes": "4000", "compression.type": "zstd"}).takes(
        record
    )


def test_headers_count() -> None:
    """Their names, their values, and what stands around them."""
    limit = RecordLimit(1000, is_packed=False)
    parts = [b"n" * 5, b"v" * 5] * 30
    assert limit.takes([b"", *parts])
    assert not limit.takes([b"", *parts], 60)


@pytest.mark.promise("order-output-topic-compacted")
@pytest.mark.parametrize(
    ("policy", "needs_key"),
    [("delete", False), ("compact", True), ("compact,delete", True), (None, False)],
)
def test_compacted_topics_need_keys(policy: str | None, *, needs_key: bool) -> None:
    """As their brokers do, whatever else becomes of old records there."""
    assert RecordLimit.of({"cleanup.policy": policy}).needs_key == needs_key


@pytest.mark.promise("order-output-topic-compacted")
def test_output_without_a_key_fails_where_the_topic_is_compacted() -> None:
    """Its event fails where it is emitted; one with a key, also an empty one, goes out."""
    stream, output = Stream("parse", "default", ("key", "value")), KafkaOutput(key="key")
    encode = encoder("out", output, stream, RecordLimit(needs_key=True))
    assert encode(("", "v"))[0] == b""
    with pytest.raises(EmitError, match="output 'out': a record without a key"):
        encode((None, "v"))
    assert encoder("out", output, stream, RecordLimit())((None, "v"))[0] is None
