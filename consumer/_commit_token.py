"""Commit tokens: how a repeated step knows which output partitions have its rows already.

Rows and token go to Kafka in one transaction. The token is an offset that the group `<app>.commits`
commits for the output partition: the newest step whose rows are in it, plus one, with the rest as
the offset's metadata. So a partition holds a step's rows exactly when its token says so, whatever
became of the process that wrote them.

Every output partition has a token before a step is begun (`renewed_tokens` sees to it at the
start, and now and then). A token that is not there when a step asks for it has therefore been lost:
offsets expire, and groups can be deleted. What the step had written is then not known, and
writing on a guess would double or lose rows: it is an error.

Pure: who reads and commits offsets stands elsewhere.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sequitur.consumer._errors import CommitTokenError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

TOKEN_FORMAT: Final = 1
_WAY_OUT: Final = (
    'To go on, run once with delivery = "at-least-once" until the step is done: '
    "rows of that one step may then be there twice. A topology is never run so: its job goes on "
    "with a checkpoint and an app of its own"
)


class OutputPartition(NamedTuple):
    """A partition of an output topic."""

    topic: str
    partition: int


def commits_group(app: str) -> str:
    """Return the consumer group whose offsets are the commit tokens of a job."""
    return f"{app}.commits"


@dataclass(frozen=True, slots=True)
class CommitToken:
    """What an output partition holds of a job.

    Attributes:
        job: Id of the job's checkpoint.
        step: The newest step whose rows are in the partition; -1 before the first.
        rows: How many rows that step put there.
        partitions: Number of partitions of the topic when they were written.
    """

    job: str
    step: int
    rows: int
    partitions: int

    @property
    def offset(self) -> int:
        """The token as the offset to commit."""
        return self.step + 1

    @property
    def metadata(self) -> str:
        """What is committed beside the offset."""
        document = {
            "sequitur": TOKEN_FORMAT,
            "job": self.job,
            "rows": self.rows,
            "partitions": self.partitions,
        }
        return json.dumps(document, separators=(",", ":"))


def read_token(where: OutputPartition, offset: int, metadata: str | None) -> CommitToken | None:
    """Return the token of a partition; None when nothing is committed for it.

    Args:
        where: The partition.
        offset: The committed offset; negative without one.
        metadata: What was committed beside it.

    Raises:
        CommitTokenError: It is not one of ours, or one of a newer version.
    """
    if offset < 0:
        return None
    try:
        document: Any = json.loads(metadata or "")
        found = document["sequitur"]
        if found == TOKEN_FORMAT:
            return CommitToken(
                job=str(document["job"]),
                step=offset - 1,
                rows=int(document["rows"]),
                partitions=int(document["partitions"]),
            )
    except (KeyError, TypeError, ValueError):
        raise CommitTokenError(
            f"{_name(where)}: offset {offset} with metadata {metadata!r} is not a commit token "
            "of ours: does another program commit under this group? Set another app"
        ) from None
    raise CommitTokenError(
        f"{_name(where)}: commit token of format {found!r}; this version reads {TOKEN_FORMAT}"
    )


def rows_there(
    where: OutputPartition, found: CommitToken | None, *, job: str, step: int, partitions: int
) -> int | None:
    """Return how many rows of a step a partition holds; None if they are still to be written.

    Args:
        where: The partition.
        found: Its token.
        job: Id of our checkpoint.
        step: The step.
        partitions: Number of partitions of the topic now.

    Raises:
        CommitTokenError: What the partition holds is not known, or is not ours.
    """
    token = _checked(where, found, job=job, step=step, partitions=partitions)
    return token.rows if token.step == step else None


def renewed_tokens(
    found: Mapping[OutputPartition, CommitToken | None],
    *,
    job: str,
    done: int,
    newest: int,
    is_established: bool,
    partitions: Mapping[str, int],
    written: Collection[str] | None = None,
) -> dict[OutputPartition, CommitToken]:
    """Return the tokens to commit again between two steps, so that none of them expires.

    None for what an unfinished step writes: a task of it that has outlived its driver may still
    commit one, and it would be overwritten. What it does not write may be new to the job.

    Args:
        found: The token of each output partition.
        job: Id of our checkpoint.
        done: The newest step that is done; -1 before the first.
        newest: The newest step that was begun.
        is_established: Whether each partition had a token when that step was begun.
        partitions: Number of partitions of each output topic.
        written: The topics that an unfinished step writes to; None for all.

    Raises:
        CommitTokenError: A token is another job's, or ahead of the checkpoint, or is missing while
            a step is unfinished.
    """
    base = {
        where: CommitToken(job=job, step=done, rows=0, partitions=partitions[where.topic])
        for where in found
    }
    renewed = {}
    for where, token in found.items():
        is_unfinished = newest > done and (written is None or where.topic in written)
        if is_unfinished and is_established:
            _checked(where, token, job=job, step=newest, partitions=partitions[where.topic])
            continue
        if token is not None:
            _check_owner(where, token, job=job)
            _check_not_ahead(where, token, step=newest)
        if token is None or (token.partitions != partitions[where.topic] and not is_unfinished):
            renewed[where] = base[where]
        elif newest == done:
            renewed[where] = token
    return renewed


def _checked(
    where: OutputPartition, token: CommitToken | None, *, job: str, step: int, partitions: int
) -> CommitToken:
    if token is None:
        raise CommitTokenError(
            f"{_name(where)} has no commit token: it was lost (offsets expire after "
            f"offsets.retention.minutes, or the group was deleted), or the job did not write there "
            f"when step {step} was begun (then run it as it was until the step is done). So it is "
            f"not known whether it holds the rows of step {step}. {_WAY_OUT}"
        )
    _check_owner(where, token, job=job)
    _check_not_ahead(where, token, step=step)
    if token.partitions != partitions:
        raise CommitTokenError(
            f"topic {where.topic!r} had {token.partitions} partitions when step {step} was begun, "
            f"and has {partitions} now: the step's rows would go elsewhere. {_WAY_OUT}"
        )
    return token


def _check_owner(where: OutputPartition, token: CommitToken, *, job: str) -> None:
    if token.job != job:
        raise CommitTokenError(
            f"{_name(where)} has the commit token of another checkpoint ({token.job}, ours is "
            f"{job}): a job that was given a new checkpoint, or writes to the topic of another, "
            "needs an app of its own"
        )


def _check_not_ahead(where: OutputPartition, token: CommitToken, *, step: int) -> None:
    if token.step > step:
        raise CommitTokenError(
            f"{_name(where)} holds step {token.step}, and the checkpoint has got to step {step} "
            "only: is it an older copy, or does another process run the same job?"
        )


def _name(where: OutputPartition) -> str:
    return f"partition {where.partition} of {where.topic!r}"
