"""One round of all checks: quota, time to live, expiration, detection.

A subscription without an owner gets its acks here: it is taken over for that. One that has an
owner, or may have one, is left alone: that owner makes these acks itself, see `skipping`.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from sequitur.base.stored import dump
from sequitur.consumer.subscription.cursor import CursorIdentity
from sequitur.consumer.subscription.detection import Finding, FindingKind, detect, near_deletion
from sequitur.consumer.subscription.expiry import is_unused
from sequitur.consumer.subscription.owned_cursors import OwnedCursors
from sequitur.consumer.subscription.partitions import PartitionCursor
from sequitur.consumer.subscription.registry import NOTED_EACH_MS, Registry
from sequitur.consumer.subscription.registry_store import BacklogStates
from sequitur.consumer.subscription.skipping import cuts, quota_checks, skip
from sequitur.consumer.subscription.subscription_state import SubscriptionState
from sequitur.consumer.subscription.survey import Cuts, DueAck, due_acks
from sequitur.errors import (
    SubscriptionConnectedError,
    SubscriptionFencedError,
    TopicError,
    UnansweredError,
    UnknownSubscriptionError,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from sequitur.consumer.subscription.backlog import Surveyor
    from sequitur.consumer.subscription.backlog_quota import QuotaCheck
    from sequitur.consumer.subscription.cursor_store import CursorOwner
    from sequitur.consumer.subscription.registry import Changes, SubscriptionRecord
    from sequitur.consumer.subscription.survey import Survey


VALID_FOR_MS: Final = 30_000
"""Producers wait so long for the next round, then they go on."""
_HALF_DONE: Final = (
    "its reset was not finished. Its consumer or the next command finishes it. Until then none "
    "of its messages expire, are evicted or deleted"
)
_OF_BEFORE: Final = "and the acks are for messages of the old topic: reset the subscription"


class Checks:
    """Makes rounds of checks. One process at a time does this, see `led_checks`."""

    def __init__(
        self,
        surveyor: Surveyor,
        *,
        copy_to: str | None = None,
        valid_for_ms: int = VALID_FOR_MS,
        dry_run: bool = False,
    ) -> None:
        self._surveyor = surveyor
        self._copy_to = copy_to
        self._valid_for_ms = valid_for_ms
        self._is_dry = dry_run
        self._states: BacklogStates | None = None
        self._told: set[str] | None = None

    def close(self) -> None:
        if self._states is not None:
            self._states.close()

    def run(self, *, now_ms: int | None = None) -> CheckRound:
        survey = self._surveyor.judged(now_ms=now_ms, is_detected=True)
        acked, findings = [], []
        wanted = cuts(survey)
        survey = self._with_ages_of_reset(survey, wanted)
        for record in list(survey.registry.subscriptions.values()):
            if record.name in survey.untold or not due_acks(survey, record, wanted):
                continue
            survey, done, found = self._ack(survey, record, wanted)
            acked += done
            findings += found
        if acked and not self._is_dry:
            survey = self._surveyor.with_limits(survey)
        checks = quota_checks(survey)
        if not self._is_dry:
            self._publish(checks, survey.now_ms)
        findings += [_over_quota(one) for one in checks if one.is_exceeded]
        findings += _detected(survey)
        findings += _lost(survey)
        findings += self._near_deletion(survey)
        findings += [
            Finding(FindingKind.DAMAGED, None, name, why)
            for name, why in sorted(survey.damaged.items())
        ]
        findings += _unknown(survey)
        expired = self._expire(survey, _not_known(findings))
        findings += [
            Finding(FindingKind.EXPIRED_SUBSCRIPTION, None, name, "nobody used it")
            for name in expired
        ]
        if not self._is_dry:
            self._note_connected(survey)
        return CheckRound(
            survey.now_ms, tuple(checks), tuple(acked), tuple(findings), tuple(expired)
        )

    def _with_ages_of_reset(self, survey: Survey, wanted: Cuts) -> Survey:
        """Return the survey with the ages that a reset asked for, if they matter."""
        names = {
            record.name
            for where, stop in wanted.alive_from.items()
            for record in survey.registry.on(where.topic)
            if record.reset_ms is not None and survey.first_unacked(record.name, where) < stop
        }
        return self._surveyor.with_oldest(survey, names) if names else survey

    def _ack(
        self, survey: Survey, record: SubscriptionRecord, wanted: Cuts
    ) -> tuple[Survey, list[DueAck], list[Finding]]:
        """Ack a subscription's due messages, unless it has a consumer."""
        due = due_acks(survey, record, wanted)
        if self._is_dry:
            return survey, due, _acked(due)
        if record.name in survey.connected:
            return survey, [], [_owned(record.name, due)]
        try:
            # Judge again: a consumer may have come, and a takeover would fence it.
            with self._surveyor.cursors.take(
                record.name, watch=self._surveyor.watch, partition=record.partition
            ) as owner:
                taken = _taken(owner, survey, record)
                due = skip(self._surveyor, taken, survey, record, wanted, copy_to=self._copy_to)
                survey = survey.with_held(record.name, taken.copies(), epoch=taken.state.epoch)
        except (SubscriptionConnectedError, SubscriptionFencedError):
            return survey, [], [_owned(record.name, due)]
        except UnansweredError:
            raise
        except TopicError as error:  # such as a too large copy: other subscriptions' checks go on
            return survey, [], [Finding(FindingKind.FAILED, None, record.name, str(error))]
        return survey, due, _acked(due)

    def _near_deletion(self, survey: Survey) -> list[Finding]:
        found = []
        for topic, own in self._surveyor.topics.known_retentions(survey.topics()).items():
            for record in survey.registry.on(topic):
                found += near_deletion(
                    survey.backlog(topic),
                    subscription=record.name,
                    now_ms=survey.now_ms,
                    time_ms=own.time_ms,
                    size_bytes=own.size_bytes,
                )
        return found

    def _publish(self, checks: Sequence[QuotaCheck], now_ms: int) -> None:
        """Tell producers. Delete the record of a topic that has lost its quota."""
        limited = [one for one in checks if one.has_limit]
        states = {
            one.topic: one.state(now_ms=now_ms, valid_for_ms=self._valid_for_ms) for one in limited
        }
        if self._told is None:  # earlier checks may have died or been cut off
            self._told = self._surveyor.registry.told_topics()
        gone = self._told - states.keys()
        if not states and not gone:
            return
        if self._states is None:
            self._surveyor.registry.ensure()
            self._states = BacklogStates(self._surveyor.kafka)
        self._states.write({**states, **dict.fromkeys(gone)})
        self._told = set(states)

    def _expire(self, survey: Survey, kept: Collection[str | None]) -> list[str]:
        """Delete the subscriptions that nobody uses, except those in `kept`; return their names."""
        expired = []
        for record in survey.registry.subscriptions.values():
            if record.name in kept or not is_unused(
                survey.registry,
                record,
                is_connected=record.name in survey.connected,
                now_ms=survey.now_ms,
                idle_s=survey.idle_s.get(record.name, 0),
                seen_ms=survey.seen_ms.get(record.name),
            ):
                continue
            if self._is_dry or self._delete_unused(record.name, survey):
                expired.append(record.name)
        return expired

    def _delete_unused(self, name: str, survey: Survey) -> bool:
        """Delete a subscription if it is still unused; return whether it was."""
        is_deleted, group = False, ""

        def delete(registry: Registry, owner: CursorOwner) -> Changes:
            nonlocal is_deleted, group
            record = registry.require(name)
            group = record.group
            is_deleted = owner.seen_ms == survey.seen_ms.get(name) and is_unused(
                registry,
                record,
                is_connected=False,
                now_ms=survey.now_ms,
                idle_s=survey.idle_s[name],
                seen_ms=owner.seen_ms,
            )
            return registry.deleted(name) if is_deleted else {}

        try:
            self._surveyor.delete(name, delete)
        except (UnknownSubscriptionError, SubscriptionConnectedError, SubscriptionFencedError):
            return False
        if is_deleted:
            # A group that has a member keeps its offsets, and other checks go on.
            with contextlib.suppress(TopicError):
                self._surveyor.groups.delete(group)
        return is_deleted

    def _note_connected(self, survey: Survey) -> None:
        """Note when subscriptions were last connected, if no time by our clock says so."""
        for name in survey.connected:
            record = survey.registry.require(name)
            noted_ms = max(record.last_connected_ms, survey.seen_ms.get(name, 0))
            if survey.now_ms - noted_ms >= NOTED_EACH_MS:
                self._surveyor.registry.change(
                    partial(Registry.connected, name=name, now_ms=survey.now_ms), subscription=name
                )


@dataclass(frozen=True, slots=True)
class CheckRound:
    now_ms: int
    quotas: tuple[QuotaCheck, ...] = ()  # the backlog of each topic beside its quota
    # acks for subscriptions without a consumer; in a dry run the planned ones
    acked: tuple[DueAck, ...] = ()
    findings: tuple[Finding, ...] = ()  # findings and actions, in words
    expired: tuple[str, ...] = ()  # the subscriptions that were deleted

    def to_document(self) -> dict[str, Any]:
        answer = {
            "now_ms": self.now_ms,
            "backlogs": [
                {
                    "topic": one.topic,
                    "backlogSize": one.size_bytes + one.held_bytes,
                    "heldSize": one.held_bytes,
                    "isEstimate": one.is_estimate,
                    "age_s": one.age_s,
                    "proximity": one.proximity,
                    "isExceeded": one.is_exceeded,
                    "subscription": one.subscription,
                    **dump(one.quota),
                }
                for one in self.quotas
            ],
            "acked": [one._asdict() for one in self.acked],
            "findings": [one.to_document() for one in self.findings],
            "expired": self.expired,
        }
        return dump(answer)


def _taken(
    owner: CursorOwner, survey: Survey, record: SubscriptionRecord
) -> OwnedCursors[PartitionCursor]:
    """Return the cursors of a subscription that was taken over to ack what is due.

    A cursor that is not stored begins where the log does.
    """
    cursors = {
        where: PartitionCursor.begin(CursorIdentity(record.name, *where), survey.logs[where].start)
        for topic in record.topics
        for where in survey.partitions(topic)
    }
    state = SubscriptionState(epoch=record.epoch)
    if owner.stored is not None:
        state = owner.stored.state
        cursors |= owner.stored.cursors
    return OwnedCursors(record.name, replace(state, written_ms=survey.now_ms), cursors, owner)


def _detected(survey: Survey) -> list[Finding]:
    found = []
    for topic in survey.topics():
        backlog = survey.backlog(topic)
        thresholds = survey.registry.policies_of(topic).thresholds
        for record in survey.registry.on(topic):
            if record.name in survey.damaged:
                continue
            cursors = survey.cursors(record.name, topic)
            found += detect(
                backlog, cursors, thresholds, subscription=record.name, now_ms=survey.now_ms
            )
    return found


def _unknown(survey: Survey) -> list[Finding]:
    kind, registry = FindingKind.UNKNOWN, survey.registry
    of_subscriptions = {**registry.unread, **survey.untold}
    found = [
        Finding(kind, None, name, f"{why}. None of its messages expire, are evicted or deleted")
        for name, why in sorted(of_subscriptions.items())
    ]
    found += [
        Finding(kind, topic, None, "its policies cannot be read. Nothing expires or is deleted")
        for topic in sorted(registry.unread_policies, key=str)
    ]
    found += [
        Finding(kind, where.topic, None, f"partition {where.partition} has no leader")
        for where in sorted(survey.leaderless)
    ]
    there = {where.topic for where in (*survey.logs, *survey.leaderless)}
    found += [
        Finding(kind, topic, record.name, "the topic is not there, or may not be described")
        for record in registry.subscriptions.values()
        for topic in sorted(set(record.topics) - there)
    ]
    found += [
        Finding(kind, None, record.name, f"it is being reset, or {_HALF_DONE}")
        for record in registry.subscriptions.values()
        if survey.is_being_reset(record)
    ]
    found += [
        Finding(kind, topic, name, f"the topic was recreated, {_OF_BEFORE}")
        for name, topic in sorted({(name, where.topic) for name, where in survey.of_gone_logs})
    ]
    return found


def _not_known(findings: Iterable[Finding]) -> set[str | None]:
    """Return the subscriptions that must not be deleted, since too little is known about them."""
    kinds = {FindingKind.DAMAGED, FindingKind.UNKNOWN}
    return {one.subscription for one in findings if one.kind in kinds}


def _lost(survey: Survey) -> list[Finding]:
    """Return messages that were deleted unacked, and that no consumer has passed yet."""
    found = []
    for where in sorted(survey.logs):
        for record in survey.registry.on(where.topic):
            if lost := survey.deleted_unacked(record.name, where):
                start = survey.logs[where].start
                sentence = (
                    f"partition {where.partition} begins at {start}: at most {lost:,} messages "
                    "were deleted before they were acked"
                )
                figures = {"partition": where.partition, "lostAtMost": lost}
                found.append(Finding(FindingKind.LOST, where.topic, record.name, sentence, figures))
    return found


def _over_quota(check: QuotaCheck) -> Finding:
    return Finding(
        FindingKind.BACKLOG_QUOTA,
        check.topic,
        check.subscription,
        check.state(now_ms=0, valid_for_ms=0).figures,
        {"policy": check.quota.policy.value, "proximity": check.proximity},
    )


def _acked(due: Iterable[DueAck]) -> list[Finding]:
    return [
        Finding(
            one.why,
            one.topic,
            one.subscription,
            one.sentence,
            {"partition": one.partition, "first": one.first, "stop": one.stop,
             "messages": one.messages},
        )
        for one in due
    ]  # fmt: skip


def _owned(subscription: str, due: Sequence[DueAck]) -> Finding:
    messages = sum(one.messages for one in due)
    return Finding(
        FindingKind.OWNED,
        None,
        subscription,
        f"it has a consumer, which acks {messages:,} messages that have expired or are evicted",
        {"messages": messages},
    )
