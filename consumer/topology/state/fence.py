"""The fence of a state's database: who may commit to it, and is it the one of the checkpoint?

The rules are pure: a store tells what it has found of a writer, and these functions refuse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from sequitur.errors import StateOvertakenError, StateOwnerError

if TYPE_CHECKING:
    from sequitur.consumer.topology.state.store import Writer


OTHER_DATABASE: Final = (
    "give the database that it wrote, or begin with a new checkpoint and another topology name"
)


class Found(NamedTuple):
    """What a database knows of a writer."""

    epoch: str | None  # of the topology; None if it is not registered
    newest: int | None  # the component's greatest transaction id; None if no task has committed
    # the task's transaction id and attempt id; None if it has not committed
    own: tuple[int, int] | None
    least_attempt: int = 0  # smaller attempt ids belong to lives that were taken over
    batch: str = ""  # names the batch that the task has committed


def check_fence(writer: Writer, found: Found, store: str) -> None:
    """Raise unless a writer may use a database. An unregistered topology is no fault."""
    txid, attempt = writer.transaction
    who = f"component {writer.component!r} of topology {writer.topology!r}"
    check_epoch(writer, found.epoch, store)
    if found.least_attempt > attempt:
        raise taken_over(writer.title, attempt, store)
    if found.newest is None:
        if writer.has_committed:
            raise StateOwnerError(
                f"{store} has no transaction of {who}, and the checkpoint says that it has "
                "committed: the database was lost, or is another one. To continue, "
                f"{OTHER_DATABASE}"
            )
        return
    if found.newest > txid:
        raise went_back(who, found.newest, txid, store)
    if found.newest < txid - 1:
        raise StateOwnerError(
            f"{store} has transaction {found.newest} of {who} as the newest, and this is "
            f"transaction {txid}: the database was restored from a backup. Restore the "
            f"checkpoint of the same time, or {OTHER_DATABASE}"
        )
    # A backup may have been made while the tasks committed one after the other.
    own_txid = 0 if found.own is None else found.own[0]
    if writer.has_task_committed and own_txid < txid - 1:
        raise StateOwnerError(
            f"{store} has transaction {own_txid} of task {writer.task} of {who} as the newest, "
            f"and this is transaction {txid}: the database was restored from a backup. "
            f"Restore the checkpoint of the same time, or {OTHER_DATABASE}"
        )
    if is_other_batch(writer, found):
        raise other_batch(writer, store)
    if found.own is not None and found.own > (txid, attempt):
        raise overtaken_by(writer, found.own, store)


def check_epoch(writer: Writer, epoch: str | None, store: str) -> None:
    """Raise unless a topology's rows are those of the writer's checkpoint."""
    if epoch is None:
        if writer.has_committed:
            raise StateOwnerError(
                f"{store} does not know topology {writer.topology!r}, and the checkpoint says "
                f"that {writer.component!r} has committed: the database was lost, or is "
                f"another one. To continue, {OTHER_DATABASE}"
            )
    elif epoch != writer.epoch:
        raise other_epoch(writer.topology, epoch, writer.epoch, store)


def check_host(writer: Writer, host: str, store: str) -> None:
    """Raise unless a task runs on the host of a database's file: elsewhere it finds another one."""
    if writer.host and host != writer.host:
        raise StateOwnerError(
            f"{writer.title}, runs on host {host!r}, and {store} is a file of host "
            f"{writer.host!r}: have all executors run there, or take PostgreSQL"
        )


def refusal(writer: Writer, found: Found, store: str) -> StateOwnerError | StateOvertakenError:
    """Return why a database did not take a commit. Its first statement changed nothing."""
    if found.epoch is None:
        return lost_topology(writer.topology, store)
    if found.epoch != writer.epoch:
        return other_epoch(writer.topology, found.epoch, writer.epoch, store)
    if is_other_batch(writer, found):
        return other_batch(writer, store)
    if found.least_attempt > writer.transaction.attempt_id:
        return taken_over(writer.title, writer.transaction.attempt_id, store)
    if found.own is not None and found.own > tuple(writer.transaction):
        return overtaken_by(writer, found.own, store)
    return StateOvertakenError(
        f"{writer.title}: {store} has transaction {found.newest} of the component already: end "
        "this task, a newer one is at work"
    )


def is_other_batch(writer: Writer, found: Found) -> bool:
    """Return whether the task has committed the writer's transaction with another batch."""
    is_repeat = found.own is not None and found.own[0] == writer.transaction.transaction_id
    return is_repeat and bool(writer.batch) and writer.batch != found.batch


def other_batch(writer: Writer, store: str) -> StateOwnerError:
    """Return the error about a transaction that was committed with another batch."""
    return StateOwnerError(
        f"{store} has transaction {writer.transaction.transaction_id} of {writer.component!r} in "
        f"topology {writer.topology!r}, task {writer.task}, with another batch than the checkpoint "
        "has prepared: the checkpoint is an older copy. Give the newest one, or restore the "
        "database of the same time"
    )


def went_back(who: str, newest: int, txid: int, store: str) -> StateOwnerError:
    """Return the error about a database that is ahead of the checkpoint."""
    return StateOwnerError(
        f"{store} has transaction {newest} of {who}, and this is transaction {txid}: transaction "
        "ids went back. If the checkpoint is an older copy, give the newest one. If this is "
        "an old process, end it"
    )


def other_epoch(topology: str, epoch: str, own: str, store: str) -> StateOwnerError:
    """Return the error about rows of another checkpoint."""
    return StateOwnerError(
        f"topology {topology!r} in {store} belongs to checkpoint {epoch!r}, and this is "
        f"checkpoint {own!r}: start with that one, or give the topology and its states other "
        "names"
    )


def overtaken_by(writer: Writer, newer: tuple[int, int], store: str) -> StateOvertakenError:
    """Return the error about a newer attempt or transaction."""
    return StateOvertakenError(
        f"{writer.title}: {store} has transaction {newer[0]}, attempt {newer[1]} already: end this "
        "task, a newer one is at work"
    )


def taken_over(who: str, attempt: int, store: str) -> StateOvertakenError:
    """Return the error about a life of the job that another life has taken over from."""
    return StateOvertakenError(
        f"{who}: {store} takes nothing of attempt {attempt} any more: a newer process of the job "
        "has taken over. End this one"
    )


def lost_topology(topology: str, store: str) -> StateOwnerError:
    """Return the error about a topology that is no longer registered."""
    return StateOwnerError(
        f"{store} does not know topology {topology!r} any more: the database was changed under "
        f"the job. To continue, {OTHER_DATABASE}"
    )
