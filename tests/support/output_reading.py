"""What readers of a job's output see: the same at either isolation level."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sequitur.cli.topic_reader import read_topic

if TYPE_CHECKING:
    from sequitur.cli.topic_reader import TopicRecord
    from sequitur.producer import KafkaSettings


def read_output(kafka: KafkaSettings, topic: str) -> list[TopicRecord]:
    """Return what a topic holds, as a reader at `read_uncommitted` sees it.

    One at `read_committed`, who reads a moment later, must see all of it, too, and nothing between.
    """
    seen = list(read_topic(kafka, topic, isolation_level="read_uncommitted"))
    ends: dict[int, int] = {}
    for record in seen:
        ends[record.partition] = record.offset + 1
    committed = [
        record
        for record in read_topic(kafka, topic)
        if record.offset < ends.get(record.partition, 0)
    ]
    assert sorted(committed, key=_place) == sorted(seen, key=_place)
    return seen


def _place(record: TopicRecord) -> tuple[int, int]:
    return record.partition, record.offset
