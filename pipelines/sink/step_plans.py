"""The plan of a step, and what is known of partitions once it is done: which sequence a row has.

A step's rows and their order in each output partition are fixed before any goes out. So with the
producer id, the epoch and the sequence of its first row, row n of a partition always has the
same sequence, and a broker appends each sequence once.

Pure: `sink.step_planner` asks brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import Struct

from sequitur.errors import FencedError, LostRowsError, OutputMismatchError
from sequitur.kafka.identity import Identity
from sequitur.kafka.producer_ids import ProducerState, Untold
from sequitur.kafka.record_format import MAX_SEQUENCE

if TYPE_CHECKING:
    from sequitur.kafka.partition import OutputPartition
    from sequitur.kafka.producer_ids import Told


PLAN_FORMAT: Final = 1
ANEW: Final = "give the job a checkpoint and an app of its own"
OLDER_COPY: Final = (
    "is the checkpoint an older copy, or does another job write to this topic under the same app? "
    "Put the newest copy back, or give the job a checkpoint and an output topic of its own"
)


class IdentityOwner(Struct, frozen=True, tag_field="format", tag=1):
    """The name and the Kafka cluster that a producer id belongs to."""

    TITLE: ClassVar = "owner of a producer id"

    app: str
    cluster: str | None


class TopicPlan(Struct, frozen=True, rename={"topic_id": "id"}):
    topic_id: str | None  # the brokers' id of the topic, hexadecimal; None where they give none
    firsts: tuple[int, ...]  # of each partition the sequence of the step's first row
    # of each partition an offset behind which the step's rows are, all of them
    ends: tuple[int, ...]
    batch_bytes: int  # rows are cut into batches of so many bytes, uncompressed


class StepPlan(Struct, frozen=True, tag_field="format", tag=PLAN_FORMAT):
    """Where the rows of a step go, and with which sequences."""

    TITLE: ClassVar = "plan"

    step: int
    cluster: str | None
    identity: Identity  # producer id and epoch of all its batches
    topics: Mapping[str, TopicPlan]


class SequenceEnds(Struct, frozen=True, tag_field="format", tag=PLAN_FORMAT):
    """How far sequences have got, according to a done mark."""

    TITLE: ClassVar = "sequences"

    cluster: str | None
    identity: Identity  # the producer id and epoch that wrote last
    # of each topic its id, and of each partition the sequence that comes next; 0 where the identity
    # has written nothing
    topics: Mapping[str, tuple[str | None, tuple[int, ...]]]


def rows_there(where: OutputPartition, told: Told, identity: Identity, first: int) -> int | None:
    """Return how many of a step's rows a partition's leader has; None if the log has to tell."""
    if told is Untold.NOT_ALLOWED:
        raise not_allowed(where)
    if not isinstance(told, ProducerState):
        return None
    if told.epoch > identity.epoch:
        raise FencedError(
            f"{where}: a newer process of the job has written there (epoch {told.epoch}, ours is "
            f"{identity.epoch})"
        )
    if told.epoch == identity.epoch:
        return rows_until(where, told.last_sequence, first)
    if first:
        raise lost(where, "all")
    return 0


def rows_until(where: OutputPartition, last: int, first: int) -> int:
    """Return how many of a step's rows are there, by the last sequence of a partition."""
    rows = (last + 1 - first) & MAX_SEQUENCE
    if rows > MAX_SEQUENCE // 2:
        raise lost(where, MAX_SEQUENCE + 1 - rows)
    return rows


def check_held(where: OutputPartition, told: Told, sent: SequenceEnds | None) -> None:
    """Check that a partition holds exactly the rows of a done mark."""
    if sent is None:
        # The leader knows nothing of the producer id.
        is_ahead = isinstance(told, ProducerState)
    else:
        _topic_id, sequences = sent.topics.get(where.topic, (None, ()))
        following_one = sequences[where.partition] if where.partition < len(sequences) else 0
        if behind := rows_behind(told, sent.identity, following_one):
            raise lost(where, behind)
        is_ahead = rows_ahead(told, sent.identity, following_one)
    if is_ahead:
        raise OutputMismatchError(
            f"{where} holds rows that the checkpoint does not know: {OLDER_COPY}"
        )


def rows_ahead(told: Told, identity: Identity, following: int) -> bool:
    """Return whether a partition has rows that the checkpoint does not know."""
    if not isinstance(told, ProducerState):
        return False
    if told.epoch != identity.epoch:
        return told.epoch > identity.epoch
    ahead = (told.last_sequence + 1 - following) & MAX_SEQUENCE
    return 0 < ahead <= MAX_SEQUENCE // 2


def rows_behind(told: Told, identity: Identity, following: int) -> int:
    """Return how many rows a partition lacks, at least, that the checkpoint says it has.

    A leader that knows nothing of the producer id has forgotten it, or lost it: 0.
    """
    if not isinstance(told, ProducerState) or told.epoch > identity.epoch:
        return 0
    if told.epoch < identity.epoch:
        return following
    behind = (following - told.last_sequence - 1) & MAX_SEQUENCE
    return behind if behind <= MAX_SEQUENCE // 2 else 0


def not_allowed(where: OutputPartition) -> OutputMismatchError:
    """Return the error for a topic that may not be read."""
    return OutputMismatchError(
        f"topic {where.topic!r} may not be read, and without reading it is not known what of a "
        "step is there: give the job the right READ on the topics that it writes"
    )


def lost(where: OutputPartition, rows: object) -> LostRowsError:
    """Return the error for a partition that lacks rows of a done step."""
    return LostRowsError(
        f"{where} lacks rows that its brokers had acknowledged, in steps that are done ({rows} "
        "of them): they have lost part of their log (an unclean election, a restored disk). "
        f"To continue, {ANEW}"
    )


def topic_deleted(topic: str) -> OutputMismatchError:
    return OutputMismatchError(
        f"topic {topic!r} was deleted while the job ran. What it held is gone: {ANEW}"
    )
