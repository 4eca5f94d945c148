"""Which names a subscription may have: one rule for whoever creates or opens one, and for jobs.

The consumer group of a subscription is called `sequitur-` and its name, or has the prefix of its
installation (`[kafka] system_prefix`) instead. A group of somebody else is left alone: its
members would lose their partitions, and its offsets would be replaced.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sequitur.base.process import wall_clock_ms
from sequitur.base.retry import Backoff, Retry
from sequitur.consumer.subscription.checks import checks_group
from sequitur.consumer.subscription.cursor import CursorIdentity, PartitionCursor
from sequitur.consumer.subscription.inspection import (
    await_no_owner,
    logs_of,
    standing_of,
    standing_with,
)
from sequitur.consumer.subscription.position import (
    CursorMove,
    Edge,
    MoveTotals,
    ToTime,
    forward_move,
    places_of,
    reset_move,
    skip_stop,
)
from sequitur.consumer.subscription.registry import group_of_new
from sequitur.consumer.subscription.stored_records import SubscriptionState, nothing_stored
from sequitur.errors import (
    PositionRangeError,
    SubscriptionChangedError,
    SubscriptionConnectedError,
    SubscriptionError,
    SubscriptionExistsError,
    TopicError,
)
from sequitur.kafka.settings import system_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from sequitur.consumer.subscription.backlog import Surveyor
    from sequitur.consumer.subscription.inspection import Standing
    from sequitur.consumer.subscription.position import ResetTarget
    from sequitur.consumer.subscription.registry import (
        Changes,
        Registry,
        RegistryStore,
        SubscriptionRecord,
        SubscriptionType,
    )
    from sequitur.kafka.groups import ConsumerGroups
    from sequitur.kafka.partition import SourcePartition


_OF_CONSUMERS: Final = {"", "consumer"}
"""The kinds of groups whose offsets consumers commit; the first has had no member yet."""


def may_take(
    surveyor: Surveyor,
    name: str,
    kind: SubscriptionType,
    topics: Collection[str],
    *,
    grows: bool = False,
    fence: bool = False,
) -> SubscriptionRecord | None:
    """Check that a name is a subscription's of that kind on these topics, or may become one's."""
    found = surveyor.registry.read().find(name)
    if found is not None:
        left_out = set(found.topics) - set(topics)
        may_grow = grows and not any(surveyor.topics.partitions(one) for one in left_out)
        refuse_another(found, kind, found.topics if may_grow else topics)
        return found
    kafka = surveyor.kafka
    own = group_of_new(kafka, name)
    if name.startswith(system_name(kafka, "")) or own == checks_group(kafka):
        raise SubscriptionError(
            f"subscription {name!r}: consumer groups of that name are Sequitur's own: choose "
            "another name"
        )
    if surveyor.cursors.read(name) is None:  # else a job's that has not registered it yet
        _refuse_groups(surveyor.groups, name, own, fence=fence)
    return None


def refuse_another(
    found: SubscriptionRecord, kind: SubscriptionType, topics: Collection[str]
) -> None:
    """Refuse a subscription that is of another type, or on other topics."""
    if set(found.topics) != set(topics) or found.type is not kind:
        raise SubscriptionError(
            f"subscription {found.name!r} is of type {found.type} on {', '.join(found.topics)}, "
            f"not of type {kind} on {', '.join(topics)}: open it as it is, or delete it first"
        )


def _refuse_groups(groups: ConsumerGroups, name: str, own: str, *, fence: bool) -> None:
    """Refuse a name that a group has which is no subscription's, with the prefix or without."""
    kinds = groups.kinds()
    for group in (name, own):
        if kinds.get(group, "") not in _OF_CONSUMERS:
            raise SubscriptionExistsError(
                f"group {group!r} is a group of type {kinds[group]}: choose another name"
            )
        if fence:
            continue
        # An opener that has died before it had registered it leaves a member for some seconds.
        if groups.connected([group], but=None if group == name else name):
            raise SubscriptionConnectedError(
                f"consumer group {group!r} is not a subscription and has a member: choose "
                "another name, or take it over (sequitur subscription create --fence)"
            )
        if offsets := groups.committed_by_others(group):
            raise SubscriptionExistsError(
                f"consumer group {group!r} is not a subscription and has committed offsets of "
                f"{len(offsets)} partitions: choose another name, or take it over (sequitur "
                "subscription create --fence)"
            )


# Cursors are moved by an administrator: reset, skip, expire. Planned first, then carried out.
#
# To carry a plan out takes the subscription over, so of two administrators at once one is refused.
# It is refused as long as the subscription has an owner, unless it is told to take it away from
# that one: a job then stops by name, and goes on from the new cursors when it is started again.
#
# A reset writes the cursors first and the registry behind them. Whoever finds cursors of a newer
# epoch than the registry's has found a reset whose process died in between: `finish_reset` ends it.
# Until then nothing expires and nothing is evicted (`Survey.is_being_reset`).


class MoveKind(StrEnum):
    """Why cursors move."""

    RESET = "reset"
    SKIP = "skip"
    EXPIRE = "expire"


_Moves: TypeAlias = "Callable[[Standing], list[CursorMove]]"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done to the cursors of a subscription; `CursorMoves.carry_out` does it."""

    kind: MoveKind
    standing: Standing  # the subscription when this was planned
    moves: tuple[CursorMove, ...]  # what it means then
    make: _Moves  # returns what it means for the cursors as they are

    @property
    def name(self) -> str:
        """The subscription's name."""
        return self.standing.record.name

    def to_document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return _document(self.kind, self.name, self.standing.epoch, self.moves)


@dataclass(frozen=True, slots=True)
class Moved:
    """What was done to the cursors of a subscription."""

    kind: MoveKind
    name: str
    epoch: int
    moves: tuple[CursorMove, ...]

    def to_document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return _document(self.kind, self.name, self.epoch, self.moves)


def _document(kind: MoveKind, name: str, epoch: int, moves: Sequence[CursorMove]) -> dict[str, Any]:
    totals = MoveTotals.of(moves)
    return {
        "subscription": name,
        "kind": kind.value,
        "epoch": epoch,
        "messages": totals.messages,
        "acked": totals.acked,
        "skipped": totals.skipped,
        "gone": totals.gone,
        "moves": [one.to_document() for one in moves],
    }


def finish_reset(registry: RegistryStore, name: str, state: SubscriptionState) -> None:
    """Have the registry name the epoch that a subscription's cursors are of.

    The last act of a reset; also that of one whose process died before it, so that a job calls it
    when it starts.
    """

    def note(known: Registry) -> Changes:
        return known.reset(name, epoch=state.epoch, now_ms=state.written_ms)

    registry.change(note, subscription=name)


class CursorMoves:
    """Moves the cursors of subscriptions."""

    def __init__(self, surveyor: Surveyor) -> None:
        self._surveyor = surveyor

    def plan_reset(self, name: str, target: ResetTarget) -> Plan:
        """Return what it means to begin anew elsewhere, with nothing acked behind that."""

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
        """Return what it means to skip unacked messages, the oldest of each partition."""

        def stop(standing: Standing, where: SourcePartition) -> int:
            return skip_stop(standing.held(where).cursor, standing.survey.logs[where], count)

        return self._plan_forward(MoveKind.SKIP, name, stop, only)

    def plan_expire(self, name: str, older_than_s: int, *, time_ms: int | None = None) -> Plan:
        """Return what it means to ack messages up to before the first that is not too old."""
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
        """Do what was planned, on the cursors as they are then."""
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
                # A topic that is made anew later is known by its id not to be the one of now.
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

        Of a topic that was created anew none stays: what is acked is of messages that are gone.
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


def _refuse_changed(planned: Standing, found: Standing, *, fence: bool) -> None:
    """Refuse what was planned for other cursors; those of a job that runs move all the time."""
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
    """Return all cursors of the new epoch; of those that stay, what was read comes again."""
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
    """Return the partitions with cursors that their topics do not have: they had more before."""
    stored = {} if standing.stored is None else standing.stored.cursors
    there = {where.topic for where in standing.partitions}
    return [where for where in stored.keys() - standing.partitions if where.topic in there]


def _forwarded(standing: Standing, move: CursorMove) -> PartitionCursor:
    held = standing.held(move.where)
    start, keeps_read = standing.survey.logs[move.where].start, bool(standing.state.checkpoint)
    held.cursor.pass_over(move.target, start=start, end=move.end, keeps_read=keeps_read)
    return held._replace(sizes=held.sizes.behind(held.cursor.committed_offset))


# Subscriptions are created and deleted.
#
# Record and cursors are written in one transaction, and the registry decides which of two
# administrators wins. The group's offsets follow. A deletion that an older version has not ended is
# ended by the next one, or by the next creation.


_UNTIL_MEMBERS_GO: Final = Retry(
    patience_s=90.0, backoff=Backoff(initial_ms=500, maximum_ms=500, jitter=0)
)
"""A member stays in its group until its session times out: ours for 10 s, others' for 45 s."""


class SubscriptionAdmin:
    """Creates and deletes subscriptions."""

    def __init__(self, surveyor: Surveyor) -> None:
        self._surveyor = surveyor

    def create(self, record: SubscriptionRecord, *, at: Edge, fence: bool = False) -> None:
        """Create a subscription, with a cursor of each partition of its topics."""
        for topic in record.topics:
            self._surveyor.topics.require(topic)
        may_take(self._surveyor, record.name, record.type, record.topics, fence=fence)
        self._surveyor.registry.read().created(record)
        with self._surveyor.cursors.take(record.name) as owner:
            # Of one of that name whose deletion an older version has not ended.
            left = () if owner.stored is None else owner.stored.cursors
            begins = {
                where: log.start if at is Edge.EARLIEST else log.end
                for where, log in logs_of(self._surveyor.topics, record.topics).items()
            }
            state = SubscriptionState(
                epoch=record.epoch,
                written_ms=record.created_ms,
                topics=self._surveyor.topics.ids(record.topics),
            )
            made = replace(record, partition=owner.partition, group=owner.group)
            change = self._surveyor.registry.change
            owner.write(
                state,
                [
                    PartitionCursor.begin(CursorIdentity(record.name, *where), offset)
                    for where, offset in begins.items()
                ],
                removed=left,
                by=partial(
                    change, lambda registry: registry.created(made), subscription=record.name
                ),
            )

    def delete(self, name: str, *, force: bool = False) -> None:
        """Delete a subscription, its cursors and the offsets of its group."""
        surveyor = self._surveyor
        registry = surveyor.registry.read()
        registered = registry.find(name)
        if registered is None and surveyor.cursors.read_all([name]).is_empty:
            registry.require(name)
        noted = registry.partition_of(name)
        followed = None if force else await_no_owner(surveyor, name, partition=noted)
        group = name
        if registered is not None:
            group = registered.group
            surveyor.delete(
                name, lambda known, _owner: known.deleted(name), force=force, followed=followed
            )
        else:  # a deletion that an older version has not ended
            watch = None if force else surveyor.watch
            with surveyor.cursors.take(
                name, watch=watch, followed=followed, to_remove=True
            ) as owner:
                owner.remove()
        groups = self._surveyor.groups

        def passes(error: Exception) -> str | None:
            is_held = isinstance(error, TopicError) and groups.connected([group])
            return "it has a member" if is_held else None

        try:
            _UNTIL_MEMBERS_GO.run(lambda: groups.delete(group), passes)
        except TopicError as error:
            if passes(error) is None:
                raise
            raise TopicError(
                f"subscription {name!r} is deleted, but its consumer group still has a member, "
                "so Kafka keeps its committed offsets: stop that member"
            ) from error
