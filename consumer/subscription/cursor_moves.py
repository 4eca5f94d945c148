"""Cursors are moved by an administrator: reset, skip, expire. Planned first, then carried out.

A plan is carried out on a subscription that was taken over, so of two administrators at once one is
refused. It is refused while the subscription has an owner, unless it says to take the subscription
from that owner. Then a job stops with an error, and resumes from the new cursors when it is started
again.

A reset writes the cursors first, and the registry after them. If the cursors are of a newer epoch
than the registry's, the process of a reset died in between: `finish_reset` ends that reset. Until
then nothing expires and nothing is evicted (`Survey.is_being_reset`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec.structs import replace

from sequitur.base.process import wall_clock_ms
from sequitur.base.stored import dump
from sequitur.consumer.subscription.cursor import CursorIdentity
from sequitur.consumer.subscription.moves import (
    CursorMove,
    MoveTotals,
    forward_move,
    reset_move,
    skip_stop,
)
from sequitur.consumer.subscription.partitions import PartitionCursor
from sequitur.consumer.subscription.position import Edge, ToTime, places_of
from sequitur.consumer.subscription.standing import (
    await_no_owner,
    standing_of,
    standing_with,
)
from sequitur.consumer.subscription.stored_records import nothing_stored
from sequitur.consumer.subscription.subscription_state import SubscriptionState
from sequitur.errors import (
    PositionRangeError,
    SubscriptionChangedError,
    SubscriptionError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sequitur.consumer.subscription.backlog import Surveyor
    from sequitur.consumer.subscription.position import ResetTarget
    from sequitur.consumer.subscription.registry import (
        Changes,
        Registry,
    )
    from sequitur.consumer.subscription.registry_store import RegistryStore
    from sequitur.consumer.subscription.standing import Standing
    from sequitur.kafka.partition import SourcePartition


class MoveKind(StrEnum):
    RESET = "reset"
    SKIP = "skip"
    EXPIRE = "expire"


_Moves: TypeAlias = "Callable[[Standing], list[CursorMove]]"


class CursorMoves:
    def __init__(self, surveyor: Surveyor) -> None:
        self._surveyor = surveyor

    def plan_reset(self, name: str, target: ResetTarget) -> Plan:
        """Plan to begin again elsewhere, with nothing acked after that place."""

        def make(standing: Standing) -> list[CursorMove]:
            logs = standing.survey.logs
            return [
                reset_move(standing.held(where).cursor, where, logs[where], offset)
                for where, offset in sorted(self._begins(standing, target).items())
            ]

        return self._plan(MoveKind.RESET, name, make)

    def plan_skip(
        self,
        name: str,
        count: int | None,
        *,
        only: Callable[[SourcePartition], bool] = lambda _where: True,
    ) -> Plan:
        """Plan to skip unacked messages, the oldest of each partition."""

        def stop(standing: Standing, where: SourcePartition) -> int:
            return skip_stop(standing.held(where).cursor, standing.survey.logs[where], count)

        return self._plan_forward(MoveKind.SKIP, name, stop, only)

    def plan_expire(self, name: str, older_than_s: int, *, time_ms: int | None = None) -> Plan:
        """Plan to ack the messages before the first that is not too old."""
        since_ms = (wall_clock_ms() if time_ms is None else time_ms) - older_than_s * 1000
        alive_from: dict[SourcePartition, int] = {}

        def stop(standing: Standing, where: SourcePartition) -> int:
            if where not in alive_from:
                alive_from.update(
                    self._surveyor.topics.offsets_since(standing.partitions, since_ms)
                )
            return alive_from[where]

        return self._plan_forward(MoveKind.EXPIRE, name, stop, lambda _where: True)

    def carry_out(self, plan: Plan, *, fence: bool = False) -> Moved:
        name, registry = plan.name, self._surveyor.registry
        noted = registry.read().require(name).partition
        cursors = self._surveyor.cursors
        followed = (
            cursors.follow(name, partition=noted)
            if fence
            else await_no_owner(self._surveyor, name, partition=noted)
        )
        watch = None if fence else self._surveyor.watch
        with cursors.take(name, watch=watch, partition=noted, followed=followed) as owner:
            standing = standing_with(self._surveyor, name, owner.stored)
            _refuse_changed(plan.standing, standing, fence=fence)
            moves = tuple(plan.make(standing))
            state = replace(standing.state, epoch=standing.epoch, written_ms=wall_clock_ms())
            if plan.kind is MoveKind.RESET:
                # If a topic is made anew later, its id shows it.
                ids = self._surveyor.topics.ids(standing.record.topics)
                state = SubscriptionState(
                    epoch=standing.epoch + 1,
                    written_ms=wall_clock_ms(),
                    topics={**standing.state.topics, **ids},
                )
                owner.write(state, _reset(name, standing, moves), removed=_of_none(standing))
            else:
                moved = [one for one in moves if one.target > one.committed]
                if moved:
                    owner.write(state, [_forwarded(standing, one) for one in moved])
        if state.epoch > standing.record.epoch:
            finish_reset(registry, name, state)
        return Moved(plan.kind, name, state.epoch, moves)

    def _plan_forward(
        self,
        kind: MoveKind,
        name: str,
        stop: Callable[[Standing, SourcePartition], int],
        only: Callable[[SourcePartition], bool],
    ) -> Plan:
        def make(standing: Standing) -> list[CursorMove]:
            wanted = [where for where in standing.partitions if only(where)]
            if not wanted:
                raise PositionRangeError(f"subscription {name!r} has no such partition")
            if standing.stored is None:
                raise SubscriptionError(nothing_stored(name))
            return [
                forward_move(
                    standing.held(where).cursor,
                    where,
                    standing.survey.logs[where],
                    stop(standing, where),
                )
                for where in wanted
            ]

        return self._plan(kind, name, make)

    def _plan(self, kind: MoveKind, name: str, make: _Moves) -> Plan:
        standing = standing_of(self._surveyor, name)
        return Plan(kind, standing, tuple(make(standing)), make)

    def _begins(self, standing: Standing, target: ResetTarget) -> dict[SourcePartition, int]:
        """Return where cursors are to begin; partitions that stay as they are are left out.

        If a topic was made anew, none stays: the acked messages are gone.
        """
        logs = standing.survey.logs
        if isinstance(target, Edge):
            earliest = target is Edge.EARLIEST
            return {where: log.start if earliest else log.end for where, log in logs.items()}
        if isinstance(target, ToTime):
            found = self._surveyor.topics.offsets_since(standing.partitions, target.time_ms)
            return {where: min(found[where], log.end) for where, log in logs.items()}
        gone = {where: logs[where].start for _name, where in standing.survey.of_gone_logs}
        return gone | places_of(target.positions, standing.record.topics, logs.keys())


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done to a subscription's cursors; `CursorMoves.carry_out` does it."""

    kind: MoveKind
    standing: Standing  # the subscription when this was planned
    moves: tuple[CursorMove, ...]  # the moves at that time
    make: _Moves  # returns the moves for the cursors at another time

    @property
    def name(self) -> str:
        return self.standing.record.name

    def to_document(self) -> dict[str, Any]:
        return _document(self.kind, self.name, self.standing.epoch, self.moves)


@dataclass(frozen=True, slots=True)
class Moved:
    kind: MoveKind
    name: str
    epoch: int
    moves: tuple[CursorMove, ...]

    def to_document(self) -> dict[str, Any]:
        return _document(self.kind, self.name, self.epoch, self.moves)


def finish_reset(registry: RegistryStore, name: str, state: SubscriptionState) -> None:
    """Have the registry name the epoch that a subscription's cursors are of.

    The last act of a reset; also that of one whose process died before it, so that a job calls it
    when it starts.
    """

    def note(known: Registry) -> Changes:
        return known.reset(name, epoch=state.epoch, now_ms=state.written_ms)

    registry.change(note, subscription=name)


def _document(kind: MoveKind, name: str, epoch: int, moves: Sequence[CursorMove]) -> dict[str, Any]:
    return {
        "subscription": name,
        "kind": kind.value,
        "epoch": epoch,
        **dump(MoveTotals.of(moves)),
        "moves": [one.to_document() for one in moves],
    }


def _refuse_changed(planned: Standing, found: Standing, *, fence: bool) -> None:
    """Raise if the plan was made for other cursors. Those of a running job always move."""
    name = found.record.name
    if found.epoch != planned.epoch or found.record.created_ms != planned.record.created_ms:
        raise SubscriptionChangedError(
            f"subscription {name!r} was reset or created again meanwhile: it is in epoch "
            f"{found.epoch}, and this was for epoch {planned.epoch}. "
            "Nothing was changed: look again"
        )
    if not fence and found.state != planned.state:
        raise SubscriptionChangedError(
            f"the cursors of subscription {name!r} have moved meanwhile: look again. Nothing was "
            "changed"
        )


def _reset(name: str, standing: Standing, moves: Iterable[CursorMove]) -> list[PartitionCursor]:
    """Return all cursors of the new epoch. Unacked messages of one that stays come again."""
    cursors = {
        one.where: PartitionCursor.begin(CursorIdentity(name, *one.where), one.target)
        for one in moves
    }
    for where in standing.partitions:
        if where not in cursors:
            cursors[where] = standing.held(where)
            cursors[where].cursor.rewind()
    return list(cursors.values())


def _of_none(standing: Standing) -> list[SourcePartition]:
    """Return the partitions that have a cursor but are not in their topic any more."""
    stored = {} if standing.stored is None else standing.stored.cursors
    there = {where.topic for where in standing.partitions}
    return [where for where in stored.keys() - standing.partitions if where.topic in there]


def _forwarded(standing: Standing, move: CursorMove) -> PartitionCursor:
    held = standing.held(move.where)
    start, keeps_read = standing.survey.logs[move.where].start, bool(standing.state.checkpoint)
    held.cursor.pass_over(move.target, start=start, end=move.end, keeps_read=keeps_read)
    return held._replace(sizes=held.sizes.behind(held.cursor.committed_offset))
