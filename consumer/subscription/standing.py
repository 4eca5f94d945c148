"""How a subscription stands: what is registered, what is stored, and where its topics end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec import structs

from sequitur.base.process import wall_clock_ms
from sequitur.consumer.subscription.backlog import gone_logs
from sequitur.consumer.subscription.claims import await_free
from sequitur.consumer.subscription.cursor_store import held_by
from sequitur.consumer.subscription.registry import Registry
from sequitur.consumer.subscription.subscription_state import SubscriptionState
from sequitur.consumer.subscription.survey import Log, Survey
from sequitur.errors import (
    SubscriptionConnectedError,
)
from sequitur.kafka.partition import SourcePartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sequitur.consumer.subscription.backlog import Surveyor
    from sequitur.consumer.subscription.compacted_topic import FollowedPartition
    from sequitur.consumer.subscription.partitions import PartitionCursor
    from sequitur.consumer.subscription.registry import SubscriptionRecord
    from sequitur.consumer.subscription.stored_records import StoredSubscription
    from sequitur.kafka.admin import KafkaTopics


@dataclass(frozen=True, slots=True)
class Standing:
    record: SubscriptionRecord
    stored: StoredSubscription | None  # what is stored; None if nothing is
    survey: Survey  # its topics and cursors

    @property
    def state(self) -> SubscriptionState:
        if self.stored is None:
            return SubscriptionState(epoch=self.record.epoch)
        return self.stored.state

    @property
    def epoch(self) -> int:
        """Its epoch. The registry's epoch may lag while a reset is under way."""
        return max(self.state.epoch, self.record.epoch)

    def held(self, where: SourcePartition) -> PartitionCursor:
        return self.survey.held_of(self.record.name, where)

    @property
    def partitions(self) -> list[SourcePartition]:
        return sorted(self.survey.logs)


def standing_of(surveyor: Surveyor, name: str) -> Standing:
    record = surveyor.registry.read().require(name)
    return _standing(surveyor, record, surveyor.cursors.read(name, partition=record.partition))


def standing_with(surveyor: Surveyor, name: str, stored: StoredSubscription | None) -> Standing:
    """Return the standing from a record that was read before; see `standing_of`."""
    return _standing(surveyor, surveyor.registry.read().require(name), stored)


def _standing(
    surveyor: Surveyor, record: SubscriptionRecord, stored: StoredSubscription | None
) -> Standing:
    name = record.name
    epoch = record.epoch if stored is None else stored.state.epoch
    survey = Survey(
        now_ms=wall_clock_ms(),
        # A reset counts even if its process died before it wrote the registry: its cursors are
        # there.
        registry=Registry({name: structs.replace(record, epoch=max(epoch, record.epoch))}),
        connected=frozenset(),
        logs=logs_of(surveyor.topics, record.topics),
    )
    if stored is not None:
        survey = replace(
            survey.with_held(name, stored.cursors, epoch=epoch),
            of_gone_logs=gone_logs({name: stored}, survey.logs, surveyor.topics.ids(record.topics)),
        )
    return Standing(record, stored, survey)


def logs_of(topics: KafkaTopics, names: Iterable[str]) -> dict[SourcePartition, Log]:
    """Return where the partitions of topics begin and end. A missing topic has no partition."""
    wanted = [
        SourcePartition(name, one)
        for name, partitions in topics.counts(names).items()
        for one in range(partitions)
    ]
    starts, ends = topics.low_watermarks(wanted), topics.high_watermarks(wanted)
    return {one: Log(starts[one], ends[one]) for one in wanted}


def await_no_owner(
    surveyor: Surveyor, name: str, *, partition: int | None = None
) -> FollowedPartition:
    """Wait until a subscription is known to have no owner; return its records from then."""
    followed = surveyor.cursors.follow(name, partition=partition)
    if (claim := await_free(surveyor.look(name, followed), patiently=False)) is not None:
        raise SubscriptionConnectedError(
            f"{held_by(name, claim)}: stop that process, or take the subscription from it "
            "(--fence). A process that died elsewhere counts for its lease, "
            f"{claim.lease_s:g} seconds"
        )
    return followed
