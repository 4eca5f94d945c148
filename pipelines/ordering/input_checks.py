"""Whether what Spark and Kafka give is what the log says was read.

Spark's own checkpoint may be lost, in part or whole, or be an older copy, and a topic may be
deleted and recreated: each looks just as before. So an entry of the log holds where its batch ended
in each source partition, and the ids that brokers have given the topics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sequitur.errors import CheckpointError
from sequitur.pipelines.store.spark_part import WAY_ON

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sequitur.consumer import Step
    from sequitur.pipelines.ordering.context import JobContext


def check_start(job: JobContext, entry: Step) -> None:
    """Check what can be checked before Spark begins a batch; it may never begin one."""
    if job.checkpoint.spark.is_planned(entry.source, entry.batch_id):
        check_batch(job, entry, entry.batch_id)
    topic_ids(job, entry, entry.topics)


def check_batch(job: JobContext, entry: Step | None, batch_id: int) -> None:
    """Check that a batch that Spark begins is the one that was logged last, or the next.

    The one that was logged has to end where the log says, and the next to begin there.
    """
    job.checkpoint.check_log(entry, batch_id)
    if entry is None:
        return
    root = job.checkpoint.root
    if batch_id not in (entry.batch_id, entry.batch_id + 1):
        raise CheckpointError(
            f"{root}: Spark begins batch {batch_id}, but batch {entry.batch_id} is logged: is "
            f"its own part of the folder gone? Put it back, or {WAY_ON}"
        )
    if entry.batch_id < 0:
        return  # the first behind a reset begins where we have told Spark to
    planned = job.checkpoint.spark.planned_offsets(entry.source, entry.batch_id)
    if planned == entry.planned:
        return
    where, _ = min(planned.items() ^ entry.planned.items())
    raise CheckpointError(
        f"{root}: Spark begins batch {batch_id}, and has planned batch {entry.batch_id} anew: "
        f"partition {where.partition} of {where.topic!r} ends at "
        f"{planned.get(where, 'no offset')}, and the log of step {entry.step} says "
        f"{entry.planned.get(where, 'none')}. Part of {entry.source}/ is gone, or is not this "
        f"checkpoint's. Put it back, or {WAY_ON}"
    )


def topic_ids(job: JobContext, before: Step | None, topics: Iterable[str]) -> dict[str, str]:
    """Ask for the ids of topics; those that were read must have the same ids as then."""
    ids = job.topics.ids(topics)
    known = {} if before is None else before.topics
    for topic, found in ids.items():
        if known.get(topic, found) != found:
            raise CheckpointError(
                f"{job.checkpoint.root}: input topic {topic!r} is not the one that was "
                f"read: its id is {found}, and was {known[topic]}. It has been deleted and "
                f"recreated, or is another cluster's. What was read of it is safe. To go on, "
                f"{WAY_ON}"
            )
    return {**known, **ids}
