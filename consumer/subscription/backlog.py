"""Asking Kafka for all that backlogs are judged by: cursors, logs, ages, and who is connected."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from sequitur.base.process import wall_clock_ms
from sequitur.base.retry import Backoff, Retry
from sequitur.consumer.subscription.claims import ClaimWatch, Hold
from sequitur.consumer.subscription.cursor_store import CursorStore
from sequitur.consumer.subscription.expiry import limits_ms, older_than
from sequitur.consumer.subscription.registry_store import RegistryStore
from sequitur.consumer.subscription.stored_records import (
    StoredRecords,
    StoredSubscriptions,
    nothing_stored,
)
from sequitur.consumer.subscription.survey import Log, Survey
from sequitur.errors import FatalError, RetriableError, TopicError, UnansweredError
from sequitur.kafka.admin import KafkaTopics
from sequitur.kafka.connections import kept_connections
from sequitur.kafka.groups import ConsumerGroups
from sequitur.kafka.partition import OutputPartition, SourcePartition
from sequitur.kafka.shared_admin import SharedAdmin

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from sequitur.base.retry import Outages
    from sequitur.consumer.subscription.claims import Claim
    from sequitur.consumer.subscription.compacted_topic import FollowedPartition
    from sequitur.consumer.subscription.cursor_store import CursorOwner
    from sequitur.consumer.subscription.expiry import Place
    from sequitur.consumer.subscription.partitions import PartitionCursor
    from sequitur.consumer.subscription.registry import Changes, Registry
    from sequitur.consumer.subscription.stored_records import StoredSubscription
    from sequitur.consumer.subscription.subscription_state import SubscriptionState
    from sequitur.kafka.settings import KafkaSettings


PATIENCE_S: Final = 60.0
"""A long step may take so many seconds, and so may the restart of a job."""
_PATIENCE_S: Final = 60.0
_RETRY: Final = Retry(
    patience_s=_PATIENCE_S, backoff=Backoff(initial_ms=100, maximum_ms=100, jitter=0)
)
_MOST_AGES: Final = 100_000
_FIGURES: Final = 64
"""A round reads at most so many ages for figures alone."""


class Surveyor:
    def __init__(
        self,
        kafka: KafkaSettings,
        *,
        replication_factor: int = -1,
        outages: Outages | None = None,
        clock: Callable[[], float] = time.monotonic,
        by_thread: bool = False,
    ) -> None:
        """With `by_thread`, repeated questions use the connections of the calling thread."""
        self.kafka = kafka
        self.admin = SharedAdmin(kafka)
        self.topics = KafkaTopics(kafka, outages, self.admin, by_thread=by_thread)
        self.registry = RegistryStore(
            kafka, replication_factor=replication_factor, outages=outages, topics=self.topics
        )
        self.cursors = CursorStore(
            kafka, replication_factor=replication_factor, outages=outages, topics=self.topics
        )
        self.groups = ConsumerGroups(kafka, outages, self.admin)
        self.watch = ClaimWatch(clock)
        self._ages: dict[tuple[str, int, int], int] = {}  # by topic's id, partition, offset
        self._frontiers = FrontierWatch()
        self._idle = IdleWatch(clock)

    def survey(
        self,
        wanted: Collection[str] | None = None,
        *,
        now_ms: int | None = None,
        registry: Registry | None = None,
        known: StoredSubscriptions | None = None,
        times: Callable[[Registry, int], Mapping[str, Iterable[int]]] | None = None,
    ) -> Survey:
        """Return a survey of topics and their subscriptions, without ages."""
        if registry is None:
            registry = self.registry.read()
        topics = registry.topics() if wanted is None else sorted(set(wanted))
        names = sorted({one.name for topic in topics for one in registry.on(topic)})
        # Cursors are read before ends: else an ack could lie beyond a known end.
        found = self.stored(registry, names) if known is None else known
        stored, claims = found.stored, found.claims
        now_ms = wall_clock_ms() if now_ms is None else now_ms
        # Ids are read before records: if a topic is made anew now, the next survey sees it.
        ids = self.topics.ids(topics)
        extents = self.topics.extents(topics, None if times is None else times(registry, now_ms))
        sizes = log_sizes(self.kafka, extents.logs)
        logs = {one: Log(*ends, sizes.get(one)) for one, ends in extents.logs.items()}
        connected = frozenset(
            name for name, claim in claims.items() if self.watch.judge(name, claim) is not Hold.FREE
        )
        return Survey(
            now_ms=now_ms,
            registry=registry,
            connected=connected,
            untold=found.untold,
            seen_ms={
                name: claim.seen_ms for name, claim in claims.items() if claim.seen_ms is not None
            },
            leaderless=extents.leaderless,
            logs=logs,
            held={name: one.cursors for name, one in stored.items()},
            epochs={name: one.state.epoch for name, one in stored.items()},
            ids=ids,
            since=extents.since,
            damaged=found.damaged,
            jobs={
                name: one.state.frontier_ms for name, one in stored.items() if one.state.checkpoint
            },
            of_gone_logs=gone_logs(stored, logs, ids),
        )

    def look(
        self, name: str, followed: FollowedPartition
    ) -> Callable[[], tuple[Hold, Claim | None]]:
        """Return a function that reads a subscription's claim and judges it."""

        def look() -> tuple[Hold, Claim | None]:
            claim = StoredRecords(followed.read()).claim(name)
            return self.watch.judge(name, claim), claim

        return look

    def judged(
        self,
        topics: Collection[str] | None = None,
        *,
        now_ms: int | None = None,
        registry: Registry | None = None,
        is_detected: bool = False,
    ) -> Survey:
        """Return a survey that tells which messages are older than the limits of their topics."""

        def times(registry: Registry, now_ms: int) -> dict[str, set[int]]:
            wanted = registry.topics() if topics is None else topics
            own = self.topics.known_retentions(wanted) if is_detected else {}
            return {
                topic: limits_ms(
                    registry.policies_of(topic),
                    now_ms=now_ms,
                    retention_ms=own[topic].time_ms if topic in own else None,
                    is_detected=is_detected,
                )
                for topic in wanted
            }

        found = self.survey(topics, now_ms=now_ms, registry=registry, times=times)
        if is_detected:
            now_s = time.monotonic()
            standing = self._frontiers.standing(found.jobs, found.caught_up, now_s)
            found = replace(found, standing=standing, idle_s=self._idle.look(found))
        return self.with_limits(found)

    def with_limits(self, survey: Survey) -> Survey:
        """Return the survey with the unacked messages that are older than the limits."""
        places = survey.places()
        oldest: dict[Place, int] = {}

        def read(wanted: Collection[Place]) -> dict[Place, int]:
            oldest.update(self._timestamps(survey, wanted))
            return oldest

        # Read ages for the figures of quotas, as far as this is cheap.
        read([
            (where, min(offsets))
            for where, offsets in places.items()
            if offsets and survey.registry.policies_of(where.topic).backlog_quota.limit_s
        ][:_FIGURES])  # fmt: skip
        older = older_than(places, survey.since, read)
        return replace(survey, oldest_ms=oldest, older_than_ms=older)

    def with_oldest(self, survey: Survey, names: Collection[str] | None = None) -> Survey:
        """Return the survey with the ages of unacked messages. Known ages are not read again."""
        found = survey.places(names)
        places = [(where, offset) for where, offsets in found.items() for offset in offsets]
        return survey.with_oldest({**survey.oldest_ms, **self._timestamps(survey, places)})

    def _timestamps(self, survey: Survey, places: Collection[Place]) -> dict[Place, int]:
        """Return the timestamp of the first message from each place on. `_ages` caches them."""
        known, ids = {}, survey.ids
        for where, offset in places:
            key = ids.get(where.topic, ""), where.partition, offset
            if key in self._ages:
                known[where, offset] = self._ages[key]
        ends = {where: log.end for where, log in survey.logs.items()}
        told = timestamps_from(self.kafka, set(places) - known.keys(), ends)
        if len(self._ages) > _MOST_AGES:
            self._ages.clear()
        for (where, offset), stamp_ms in {**known, **told}.items():
            if where.topic in ids:
                self._ages[ids[where.topic], where.partition, offset] = stamp_ms
        return {**known, **told}

    def stored(self, registry: Registry, names: Collection[str]) -> StoredSubscriptions:
        found = self.cursors.read_all(names, registry.partition_of)
        for name in set(names) - found.stored.keys() - found.damaged.keys():
            found.damaged[name] = nothing_stored(name)
        return found

    def delete(
        self,
        name: str,
        change: Callable[[Registry, CursorOwner], Changes],
        *,
        force: bool = False,
        followed: FollowedPartition | None = None,
    ) -> None:
        """Delete a subscription's record and cursors, both or neither."""
        noted = self.registry.read().partition_of(name)
        watch = None if force else self.watch
        with self.cursors.take(
            name, watch=watch, partition=noted, followed=followed, to_remove=True
        ) as owner:

            def confirmed(registry: Registry) -> Changes:
                owner.confirm()
                return change(registry, owner)

            owner.remove(by=partial(self.registry.change, confirmed, subscription=name))


class FrontierWatch:
    """Remembers since when the frontiers of jobs have stood still.

    What a job holds for its frontier counts for no quota while the frontier moves. If the frontier
    stands still though there is something to read, the job is down, or hangs. If all is read, the
    job waits for messages. These would wait for the job if producers were held for what it holds.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, float]] = {}

    def standing(
        self, frontiers: Mapping[str, int], caught_up: frozenset[str], now_s: float
    ) -> frozenset[str]:
        """Return the jobs whose frontiers have stood still for too long."""
        self._known = {
            name: self._known[name]
            if name not in caught_up and self._known.get(name, (None,))[0] == frontier_ms
            else (frontier_ms, now_s)
            for name, frontier_ms in frontiers.items()
        }
        return frozenset(
            name for name, (_, since_s) in self._known.items() if now_s - since_s > PATIENCE_S
        )


class IdleWatch:
    """Remembers since when subscriptions have had no owner, by a monotonic clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[str, tuple[int | None, float]] = {}

    def look(self, survey: Survey) -> dict[str, float]:
        """Return for how many seconds each subscription was seen without an owner.

        An owner that was there between two looks has left another time; a command leaves the one
        that it has found.
        """
        now_s = self._clock()
        before, self._known = self._known, {}
        for name in survey.registry.subscriptions.keys() - survey.connected - survey.untold.keys():
            seen_ms = survey.seen_ms.get(name)
            known = before.get(name)
            is_same = known is not None and known[0] == seen_ms
            self._known[name] = known if known is not None and is_same else (seen_ms, now_s)
        return {name: now_s - since_s for name, (_, since_s) in self._known.items()}


def gone_logs(
    stored: Mapping[str, StoredSubscription],
    logs: Mapping[SourcePartition, Log],
    ids: Mapping[str, str],
) -> frozenset[tuple[str, SourcePartition]]:
    """Return the cursors of deleted topics whose names other topics have now."""
    return frozenset(
        (name, where)
        for name, found in stored.items()
        for where, one in found.cursors.items()
        if where in logs and _is_of_gone_log(found.state, one, logs[where], ids)
    )


def _is_of_gone_log(
    state: SubscriptionState, one: PartitionCursor, log: Log, ids: Mapping[str, str]
) -> bool:
    """Tell whether a cursor belongs to a deleted topic, whose name another topic has now."""
    topic = one.cursor.identity.topic
    is_another = topic in state.topics and topic in ids and state.topics[topic] != ids[topic]
    # Some subscriptions have no stored ids. A cursor is read before the log's end.
    return is_another or one.cursor.committed_offset > log.end


def log_sizes(
    kafka: KafkaSettings, partitions: Collection[SourcePartition]
) -> dict[SourcePartition, int]:
    """Return the bytes of partitions' logs, as their leaders have them.

    Those that cannot be had are left out: without the right to describe the cluster it is all.
    """
    if not partitions:
        return {}
    wanted = [OutputPartition(*one) for one in partitions]
    # An estimate is not worth a failure, and the next round asks again.
    with contextlib.suppress(RetriableError, FatalError):
        connections = kept_connections(kafka)
        connections.run(connections.leaders.refresh({one.topic for one in wanted}))
        found = connections.run(connections.leaders.log_sizes(wanted))
        return {SourcePartition(*where): size for where, size in found.items()}
    return {}


def timestamps_from(
    kafka: KafkaSettings,
    places: Collection[tuple[SourcePartition, int]],
    ends: Mapping[SourcePartition, int],
) -> dict[tuple[SourcePartition, int], int]:
    """Return the timestamp of the first record from each place on, if there is one."""
    found: dict[tuple[SourcePartition, int], int] = {}
    left = {(OutputPartition(*where), offset) for where, offset in places}
    known_ends = {OutputPartition(*where): end for where, end in ends.items()}
    attempts = _RETRY.attempts(time.monotonic)
    while left:
        try:
            connections = kept_connections(kafka)
            connections.run(connections.leaders.refresh({where.topic for where, _ in left}))
            told = connections.run(connections.leaders.timestamps(sorted(left), known_ends))
        except RetriableError:
            told = {}
        except FatalError as error:
            raise TopicError(f"the ages of messages cannot be read: {error}") from error
        for (where, offset), stamp_ms in told.items():
            if stamp_ms is not None:
                found[SourcePartition(*where), offset] = stamp_ms
        left -= told.keys()
        if told:
            attempts.succeed()
        elif left:
            attempts.sleep(
                UnansweredError(f"no leader tells the ages of messages in {_PATIENCE_S:g} s")
            )
    return found
