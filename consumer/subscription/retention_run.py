"""`sequitur retention run`: delete what all subscriptions have acked and no retention keeps.

Kafka deletes by DeleteRecords, up to an offset of a partition; a segment goes when all of it is
before that offset. Nothing is deleted that a subscription has not acked. Two more things are
refused unless the caller names them:

- topics whose own retention deletes messages whether they are acked or not
- cuts in front of what another consumer group has committed, or a share group has got to

A share group that has not begun needs all of the topics that its members have subscribed to. If it
has no members either, or if a group does not tell, it is not known which records it needs. Then
nothing is deleted.

Other installations on the cluster have registries of their own (`[kafka] system_prefix`). All of
them are read, and no argument passes by that: what is deleted is what each installation with a
subscription on the topic would delete.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import msgspec

from sequitur.base.stored import dump
from sequitur.consumer.subscription.backlog import Surveyor
from sequitur.consumer.subscription.registry_store import registries_of_others
from sequitur.consumer.subscription.retention import (
    Holder,
    PartitionLog,
    PartitionPlan,
    held_back,
    plan_partition,
)
from sequitur.errors import TopicError, UnansweredError
from sequitur.kafka.groups import SHARE
from sequitur.kafka.partition import SourcePartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from sequitur.consumer.subscription.registry import Registry, SubscriptionRecord
    from sequitur.consumer.subscription.survey import Survey
    from sequitur.kafka.admin import OwnRetention


_HOW: Final = "or give --despite-other-groups"
_UNTOLD: Final = f"it is unknown which records it needs. Delete it, {_HOW}"
_UNLISTED: Final = f"groups that are not listed may need any record. Grant it, {_HOW}"


@dataclass(frozen=True, slots=True)
class RetentionRun:
    plans: tuple[PartitionPlan, ...]
    refusals: tuple[Refusal, ...]  # records that stay though they are acked
    is_dry: bool  # whether nothing was deleted

    @property
    def records(self) -> int:
        return sum(one.records for one in self.plans)

    def to_document(self) -> dict[str, Any]:
        size_bytes = sum(one.size_bytes for one in self.plans)
        answer = {"dryRun": self.is_dry, "records": self.records, "bytesEstimate": size_bytes}
        return dump({**answer, "partitions": self.plans, "refused": self.refusals})


class Refusal(msgspec.Struct, frozen=True, rename={"sentence": "message"}):
    topic: str
    why: Holder  # who needs the records
    sentence: str  # the reason in words, with the option that allows the deletion


def run_retention(
    surveyor: Surveyor,
    topics: Collection[str] | None = None,
    *,
    dry_run: bool = False,
    despite_topic_retention: bool = False,
    despite_other_groups: bool = False,
    now_ms: int | None = None,
) -> RetentionRun:
    survey = surveyor.survey(topics, now_ms=now_ms)
    neighbours = _Neighbours.found(surveyor, survey.topics(), now_ms)
    others = _Others() if despite_other_groups else _others(surveyor, survey, neighbours)
    unread = {**survey.registry.unread, **neighbours.unread}
    plans: list[PartitionPlan] = []
    refusals: list[Refusal] = []
    for topic in sorted({where.topic for where in survey.logs}):
        planned = neighbours.keeping(_plans(surveyor, survey, topic), topic)
        own = surveyor.topics.own_retention(topic)
        refused = _refused_topic(surveyor, survey, topic, own, is_allowed=despite_topic_retention)
        if refused is not None:
            refusals.append(refused)
            planned = [held_back(one, one.before, Holder.TOPIC, None) for one in planned]
        for name, why in unread.items() if any(x.deletes for x in planned) else ():
            sentence = (
                f"topic {topic!r}: subscription {name!r} may be on it: {why}. Run the version "
                "that has written it"
            )
            refusals.append(Refusal(topic, Holder.SUBSCRIPTION, sentence))
            planned = [held_back(x, x.before, Holder.SUBSCRIPTION, name) for x in planned]
        if others.unknown is not None and any(one.deletes for one in planned):
            group, why = others.unknown
            refusals.append(Refusal(topic, Holder.GROUP, f"topic {topic!r}: {why}"))
            planned = [held_back(one, one.before, Holder.GROUP, group) for one in planned]
        for one in planned:
            plan = one
            for group, offsets in others.committed.items():
                offset = offsets.get(SourcePartition(one.topic, one.partition))
                if offset is not None and offset < plan.after:
                    plan = held_back(plan, offset, Holder.GROUP, group)
                    refusals.append(_refused_group(plan, group, offset))
            plans.append(plan)
    if not dry_run:
        plans = _held_now(surveyor, plans)
        wanted = {
            SourcePartition(one.topic, one.partition): one.after for one in plans if one.deletes
        }
        surveyor.topics.delete_before(wanted)
    return RetentionRun(tuple(plans), tuple(refusals), is_dry=dry_run)


def _held_now(surveyor: Surveyor, plans: Sequence[PartitionPlan]) -> list[PartitionPlan]:
    """Return the plans that present cursors allow: some were reset or created meanwhile."""
    topics = {one.topic for one in plans if one.deletes}
    if not topics:
        return list(plans)
    now = surveyor.survey(topics)
    neighbours = _Neighbours.found(surveyor, topics)
    held = []
    for one in plans:
        plan = one
        where = SourcePartition(one.topic, one.partition)
        if where not in now.logs:  # the partition has lost its leader
            plan = held_back(plan, plan.before, Holder.SUBSCRIPTION, None)
        for record in now.registry.on(one.topic) if where in now.logs else ():
            offset = now.needed_from(record.name, where)
            plan = held_back(plan, offset, Holder.SUBSCRIPTION, record.name)
        held += neighbours.keeping([plan], plan.topic)
    return held


class _Neighbours(NamedTuple):
    registries: Mapping[str, Registry]  # by prefix
    # those with subscriptions on the wanted topics
    surveys: list[tuple[Surveyor, Survey]]

    @classmethod
    def found(cls, surveyor: Surveyor, topics: Collection[str], now_ms: int | None = None) -> Self:
        """Read all records of other installations on some topics."""
        registries = registries_of_others(surveyor.kafka, surveyor.topics)
        surveys = []
        for prefix, registry in registries.items():
            if wanted := [topic for topic in topics if registry.on(topic)]:
                another = Surveyor(surveyor.kafka.model_copy(update={"system_prefix": prefix}))
                surveys.append((another, another.survey(wanted, now_ms=now_ms)))
        return cls(registries, surveys)

    @property
    def unread(self) -> dict[str, str]:
        """The subscriptions whose records cannot be read, by group, with the reasons."""
        return {
            f"{prefix}-{name}": why
            for prefix, registry in self.registries.items()
            for name, why in registry.unread.items()
        }

    def keeping(self, plans: Sequence[PartitionPlan], topic: str) -> list[PartitionPlan]:
        """Return plans for a topic that keep what the others keep.

        Their subscriptions are called by their groups: two installations may have one of a name.
        """
        kept = list(plans)
        for surveyor, survey in self.surveys:
            if survey.registry.on(topic):
                own = _plans(surveyor, survey, topic, lambda record: record.group)
                found = {one.partition: one for one in own}
                kept = [_keeping(plan, found.get(plan.partition)) for plan in kept]
        return kept


def _keeping(plan: PartitionPlan, other: PartitionPlan | None) -> PartitionPlan:
    """Return a plan that also keeps what another plan for the partition keeps."""
    if other is None:  # the partition has lost its leader
        return held_back(plan, plan.before, Holder.SUBSCRIPTION, None)
    return held_back(plan, other.after, other.held_by or Holder.SUBSCRIPTION, other.holder)


def _plans(
    surveyor: Surveyor,
    survey: Survey,
    topic: str,
    called: Callable[[SubscriptionRecord], str] = lambda record: record.name,
) -> list[PartitionPlan]:
    retention = survey.registry.policies_of(topic).retention
    partitions = survey.partitions(topic)
    young: Mapping[SourcePartition, int] = {}
    if retention.time_s:
        since_ms = survey.now_ms - retention.time_s * 1000
        young = surveyor.topics.offsets_since(partitions, since_ms)
    records = survey.registry.on(topic)
    plans = []
    for where in partitions:
        known = survey.logs[where]
        young_from = young.get(where, known.start)
        log = PartitionLog(*where, known.start, known.end, known.size_bytes or 0, young_from)
        acked = {called(one): survey.needed_from(one.name, where) for one in records}
        plans.append(plan_partition(log, acked, retention))
    return plans


class _Others(NamedTuple):
    """What consumer groups and share groups need that are no subscriptions."""

    committed: Mapping[str, Mapping[SourcePartition, int]] = MappingProxyType({})
    # a group that may need any record, and why, if there is one; the group is None if some groups
    # may not be listed
    unknown: tuple[str | None, str] | None = None


def _others(surveyor: Surveyor, survey: Survey, neighbours: _Neighbours) -> _Others:
    groups, committed = surveyor.groups, {}
    registries = (survey.registry, *neighbours.registries.values())
    own = {one.group for known in registries for one in known.subscriptions.values()}
    if not groups.are_all_listed():
        return _Others(unknown=(None, f"the right Describe on Cluster is missing: {_UNLISTED}"))
    for group, kind in groups.kinds().items():
        if group in own:
            continue
        try:
            if kind == SHARE:
                begun, subscribed = groups.share_offsets(group), groups.share_topics(group)
                # It may need any record of a subscribed topic that it has not begun to read.
                waits = {where: 0 for where in survey.logs if where.topic in subscribed}
                committed[group] = {**waits, **begun}
                is_told = bool(begun or subscribed)
            else:
                committed[group] = groups.committed(group)
        except UnansweredError:
            raise
        except TopicError as error:
            return _Others(unknown=(group, f"{error}: {_UNTOLD}"))
        if kind == SHARE and not is_told:
            why = (
                f"share group {group!r} is not known to have begun, nor on which topics: {_UNTOLD}"
            )
            return _Others(unknown=(group, why))
    return _Others(committed)


def _refused_topic(
    surveyor: Surveyor, survey: Survey, topic: str, own: OwnRetention, *, is_allowed: bool
) -> Refusal | None:
    if own.is_compacted and not own.deletes:
        sentence = (
            f"topic {topic!r} is compacted (cleanup.policy): Kafka deletes no records there by "
            "offset"
        )
        return Refusal(topic, Holder.TOPIC, sentence)
    if not own.sentences or is_allowed:
        return None
    names = [one.name for one in survey.registry.on(topic)]
    age_s = surveyor.with_oldest(survey, names).backlog(topic).age_s(survey.now_ms)
    sentence = (
        f"topic {topic!r} has {' and '.join(own.sentences)}: Kafka deletes messages there "
        f"whether they are acked or not. The oldest unacked message is {age_s:,.0f} s old. "
        "Set -1, or give --despite-topic-retention"
    )
    return Refusal(topic, Holder.TOPIC, sentence)


def _refused_group(plan: PartitionPlan, group: str, offset: int) -> Refusal:
    sentence = (
        f"{plan.topic}-{plan.partition}: group {group!r} has got to {offset} and would lose "
        "later records. Let it read on, delete the group, or give --despite-other-groups"
    )
    return Refusal(plan.topic, Holder.GROUP, sentence)
