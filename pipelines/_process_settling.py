"""Events that are not done: they wait, or are given up; either is written down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from consumer import SOURCE_OFFSET_HEADER, SOURCE_PARTITION_HEADER, SOURCE_TOPIC_HEADER
from consumer.topology import (
    DEAD_ATTEMPTS_HEADER,
    DEAD_DETAIL_HEADER,
    DEAD_EVENT_TIME_HEADER,
    DEAD_PATH_HEADER,
    DEAD_REASON_HEADER,
    DEAD_TIME_HEADER,
    DEAD_TOPOLOGY_HEADER,
    FailReason,
    Failure,
    OutputRecord,
    Place,
    Root,
)
from pipelines._part_files import PartFile
from pipelines._process_batch import DEAD_LETTERS, Answer, Batch
from pipelines._process_files import (
    PLACES_SCHEMA,
    OutputFiles,
    Waiting,
    write_waiting,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


def settle_files(
    batch: Batch,
    answer: Answer,
    left: list[Waiting],
    dead: Sequence[Waiting],
    unfinished: Sequence[Place],
) -> None:
    """Write what became of events that are not done.

    Args:
        batch: What all tasks share.
        answer: Gets counts and the files' names.
        left: Events that wait; they are put in order.
        dead: Events given up.
        unfinished: Places of events whose outputs may not go out.
    """
    left.sort(key=lambda one: (*one.event[3:7],))
    answer.waiting, answer.dead = len(left), len(dead)
    answer.next_due_ms = _next_due_ms(left, batch)
    answer.waiting_file = write_waiting(batch.path("waiting"), left)
    if dead:
        letters = OutputFiles(batch.path("outputs"), {DEAD_LETTERS: batch.topics[DEAD_LETTERS]}, 0)
        for one in dead:
            letters.write(DEAD_LETTERS, _dead_letter(one, batch))
        answer.dead_file = letters.close()[DEAD_LETTERS]
    if unfinished:
        answer.unfinished_file = write_places(batch.path("unfinished"), unfinished)


def write_places(folder: Path, places: Sequence[Place]) -> str | None:
    """Write places into a file of a folder; its hidden name."""
    topics, partitions, offsets = zip(*places, strict=True)
    with PartFile(str(folder), PLACES_SCHEMA) as file:
        columns = {"topic": topics, "partition": partitions, "offset": offsets}
        file.write(pa.table(columns, schema=PLACES_SCHEMA))
    return file.name


def _next_due_ms(left: Iterable[Waiting], batch: Batch) -> int | None:
    """When the next event is to be tried again: one that waits for nobody is due at once."""
    failing: set[bytes | None] = set()
    due: list[int] = []
    for one in left:
        if one.retry_at_ms is not None:
            due.append(one.retry_at_ms)
            failing.add(one.event[0])
        elif one.event[0] not in failing:
            due.append(batch.now_ms)
    return min(due, default=None)


def killer(event: tuple[Any, ...], attempt: int) -> Waiting:
    """An event that kills the process it is given to, as it is given up.

    Args:
        event: Its values.
        attempt: Which attempt that was.
    """
    failure = crashed(())
    return Waiting(event, attempt, None, failure.reason.value, failure.detail, "")


def crashed(path: tuple[str, ...]) -> Failure:
    """Why what kills a process is given up.

    Args:
        path: The components that the tuple had come through.
    """
    return Failure(FailReason.CRASH, "the process died whenever it was given this", path)


def _dead_letter(one: Waiting, batch: Batch) -> OutputRecord:
    key, value, headers, time_ms, topic, partition, offset, _ = one.event
    told = {
        DEAD_REASON_HEADER: one.reason,
        DEAD_DETAIL_HEADER: one.detail,
        DEAD_ATTEMPTS_HEADER: one.attempts,
        DEAD_PATH_HEADER: one.path,
        DEAD_TOPOLOGY_HEADER: batch.topology.name,
        DEAD_TIME_HEADER: batch.now_ms,
        DEAD_EVENT_TIME_HEADER: time_ms,
        SOURCE_TOPIC_HEADER: topic,
        SOURCE_PARTITION_HEADER: partition,
        SOURCE_OFFSET_HEADER: offset,
    }
    added = [(name, str(said).encode()) for name, said in told.items() if said is not None]
    return OutputRecord(Root(1, one.event), key, value, [*headers, *added])
