"""What is read of partitions from which records were deleted; the broker is librdkafka's own."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from confluent_kafka import KafkaError, TopicPartition

from sequitur.consumer.subscription.partition_reader import PartitionReader
from sequitur.errors import UnansweredError
from sequitur.kafka.partition import SourcePartition
from sequitur.producer import KafkaSettings
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Collection

    from sequitur.kafka.admin import KafkaTopics

_ONE, _OTHER = SourcePartition("t", 0), SourcePartition("t", 1)
_DELETED = range(5, 7)
"""Of an empty partition no offset but 0 is there: what is read from another one is lost."""


class _OwnBroker(KafkaSettings):
    def librdkafka(self) -> dict[str, Any]:
        return {
            **super().librdkafka(),
            "bootstrap.servers": "",
            "test.mock.num.brokers": 1,
            "allow.auto.create.topics": True,
        }


class _Topics:
    """Say where partitions begin, but for those whose leader is away."""

    def __init__(self) -> None:
        self.away = {_ONE, _OTHER}

    def low_watermarks(self, wanted: Collection[SourcePartition]) -> dict[SourcePartition, int]:
        if self.away.intersection(wanted):
            raise UnansweredError("its leader is away")
        return dict.fromkeys(wanted, _DELETED.stop)

    high_watermarks = low_watermarks


class _Hidden:
    """A consumer that is told at its first poll that its group may not be seen; no commit ends."""

    def __init__(self) -> None:
        self.polls, self.is_closed = 0, False

    def poll(self, _timeout_s: float) -> Any:
        self.polls += 1
        assert self.polls < 5, "the close waits for an answer that does not come"
        refusal = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)
        return SimpleNamespace(error=lambda: refusal, topic=lambda: None)

    def commit(self, **_given: object) -> None: ...

    def unassign(self) -> None: ...

    def close(self) -> None:
        self.is_closed = True


def test_a_close_waits_for_no_group_that_may_not_be_seen() -> None:
    """The client says so once, and that may be while the reader is closed."""
    kafka, hidden = _OwnBroker(bootstrap_servers="nowhere:1"), _Hidden()
    reader = PartitionReader(kafka, cast("KafkaTopics", _Topics()), "g")
    reader._consumer.close()
    reader._consumer = cast("Any", hidden)
    reader._offsets.set([TopicPartition("t", 0, 5)])
    reader.close()
    assert (hidden.polls, hidden.is_closed) == (1, True)


def test_what_was_deleted_is_told_though_another_leader_does_not_answer() -> None:
    """Else nobody would ever ack it: its partition is read on behind it."""
    topics, kafka = _Topics(), _OwnBroker(bootstrap_servers="nowhere:1")

    def read() -> set[SourcePartition]:
        with contextlib.suppress(UnansweredError):
            found = reader.read(10, 0.1)
            return {one.where for one in found if range(one.first, one.offset) == _DELETED}
        return set()

    with contextlib.closing(PartitionReader(kafka, cast("KafkaTopics", topics), "g")) as reader:
        reader.add({_ONE: _DELETED.start, _OTHER: _DELETED.start})
        wait_until(lambda: read() == set() and reader._lost == {_ONE, _OTHER})
        topics.away = {_OTHER}
        assert read() == {_ONE}
        topics.away = set()
        assert read() == {_OTHER}
