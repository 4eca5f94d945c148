"""Acks of messages that nobody processes: their time to live is over, or a quota evicts them.

The owner of a subscription's cursors makes these acks, in order with its own. A job and an open
`Subscription` make them for themselves. The checks make them for a subscription without a
consumer.
"""

from __future__ import annotations

import logging
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from sequitur.consumer.subscription.backlog_quota import age_cutoff_ms, check_quota, cuts_by_size
from sequitur.consumer.subscription.detection import FindingKind
from sequitur.consumer.subscription.duty import Duty, ToldOnce
from sequitur.consumer.subscription.expiry import ttl_cutoff_ms
from sequitur.consumer.subscription.message_copies import copy_skipped
from sequitur.consumer.subscription.survey import Cuts, DueAck, due_acks
from sequitur.errors import (
    ConsumerError,
    ReorderError,
    SubscriptionClosedError,
    SubscriptionFencedError,
)
from sequitur.kafka.partition import SourcePartition
from sequitur.kafka.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from sequitur.consumer.subscription.backlog import Surveyor
    from sequitur.consumer.subscription.backlog_quota import QuotaCheck
    from sequitur.consumer.subscription.owned_cursors import OwnedCursors
    from sequitur.consumer.subscription.policies import PoliciesInForce
    from sequitur.consumer.subscription.registry import SubscriptionRecord
    from sequitur.consumer.subscription.survey import Survey
    from sequitur.kafka.settings import KafkaSettings


SKIPS_EACH_S: Final = 2.0
_logger: Final = logging.getLogger("sequitur.subscription")


class OwnSkips:
    """Acks expired and evicted messages of an open subscription, every so often."""

    def __init__(self, surveyor: Surveyor, own: OwnedCursors[Any], topics: Sequence[str]) -> None:
        self.counts: Counter[FindingKind] = Counter()
        self._surveyor = surveyor
        self._own = own
        self._topics = topics
        told = ToldOnce(lambda line: _logger.warning("%s: %s", own.name, line))
        # Receivers go on: brokers come back, and others' damaged records are mended.
        self.duty = Duty(
            self._skip,
            every_s=SKIPS_EACH_S,
            passes=(ReorderError, ConsumerError),
            tell=lambda error: told(f"what has expired is not looked for: {error}"),
        ).later()

    def _skip(self) -> None:
        try:
            due = skip_due(self._surveyor, self._own, self._topics)
        except (SubscriptionClosedError, SubscriptionFencedError):
            return  # each call of the subscription raises it
        for one in due:
            self.counts[one.why] += one.messages
            _logger.warning(
                "%s: %s: %s, %s", self._own.name, one.why.value, one.topic, one.sentence
            )


def skip_due(surveyor: Surveyor, own: OwnedCursors[Any], topics: Collection[str]) -> list[DueAck]:
    registry = surveyor.registry.read()
    record = registry.subscriptions.get(own.name)
    if record is None or not any(_may_skip(registry.policies_of(one)) for one in topics):
        return []
    survey = surveyor.judged(topics, registry=registry)
    return skip(surveyor, own, survey, record, cuts(survey))


def skip(
    surveyor: Surveyor,
    own: OwnedCursors[Any],
    survey: Survey,
    record: SubscriptionRecord,
    wanted: Cuts,
    *,
    copy_to: str | None = None,
) -> list[DueAck]:
    """Ack a subscription's due messages by its own cursors, which may be newer than the survey."""
    copy_to = record.evicted_topic or copy_to
    survey = survey.with_held(record.name, own.copies(), epoch=own.state.epoch)
    if record.reset_ms is not None:  # the ages behind a reset tell what it asked for
        survey = surveyor.with_oldest(survey, [record.name])
    due = due_acks(survey, record, wanted)
    # Do not copy evicted copies again: that would never end.
    copied = [
        one for one in due if one.why is FindingKind.EVICTED and copy_to not in {None, one.topic}
    ]
    if copied:
        due = _up_to_transactions(surveyor.kafka, survey, due, copied)
    for where, acks in groupby(due, _where):
        of_partition = list(acks)
        evicted = [one for one in of_partition if one.why is FindingKind.EVICTED]
        if copy_to not in {None, where.topic} and evicted:
            surveyor.topics.require(copy_to)  # else a producer waits half a minute for the topic
            cursor = survey.held_of(record.name, where).cursor
            copy_skipped(surveyor.kafka, copy_to, evicted, cursor)
        own.expire(where, of_partition[-1].stop, survey.logs[where])
    if due:
        own.store()
    return due


def cuts(survey: Survey) -> Cuts:
    """Return up to where messages are to be acked without being processed."""
    evicted: dict[SourcePartition, int] = {}
    alive_from: dict[SourcePartition, int] = {}
    for check in quota_checks(survey):
        partitions = survey.partitions(check.topic)
        ttl_s = survey.registry.policies_of(check.topic).message_ttl_s
        cutoff_ms = ttl_cutoff_ms(ttl_s, now_ms=survey.now_ms)
        if cutoff_ms is not None:
            alive_from |= {one: survey.since[one, cutoff_ms] for one in partitions}
        if not check.evicts:
            continue
        if check.is_too_large and check.quota.limit_bytes is not None:
            by_size = cuts_by_size(survey.settled_backlog(check.topic), check.quota.limit_bytes)
            evicted |= {
                one: by_size[one.partition] for one in partitions if one.partition in by_size
            }
        if check.is_too_old and check.quota.limit_s is not None:
            since_ms = age_cutoff_ms(check.quota.limit_s, now_ms=survey.now_ms)
            for one in partitions:
                evicted[one] = max(survey.since[one, since_ms], evicted.get(one, 0))
    return Cuts(evicted, alive_from)


def quota_checks(survey: Survey) -> list[QuotaCheck]:
    return [
        check_quota(
            survey.settled_backlog(topic),
            survey.registry.policies_of(topic).backlog_quota,
            now_ms=survey.now_ms,
        )
        for topic in survey.topics()
    ]


def _up_to_transactions(
    kafka: KafkaSettings, survey: Survey, due: Iterable[DueAck], copied: Iterable[DueAck]
) -> list[DueAck]:
    """Return what is due. What is copied first ends where an open transaction begins.

    Messages that an open transaction may still abort are left for a later round. To wait for its
    end would hold up all other acks.
    """
    ends = Reader(kafka=kafka).stable_ends({_where(one): one.first for one in copied})
    found = []
    for one in due:
        where = _where(one)
        stop = min(one.stop, ends.get(where, one.stop))
        if one.why is not FindingKind.EVICTED or stop == one.stop:
            found.append(one)
        elif stop > one.first:
            unacked = survey.held_of(one.subscription, where).cursor.unacked_ranges(one.first, stop)
            messages = sum(end - begin for begin, end in unacked)
            found.append(one._replace(stop=stop, messages=messages))
    return found


def _where(one: DueAck) -> SourcePartition:
    return SourcePartition(one.topic, one.partition)


def _may_skip(policies: PoliciesInForce) -> bool:
    quota = policies.backlog_quota
    return bool(policies.message_ttl_s) or (quota.limit_bytes, quota.limit_s) != (None, None)
