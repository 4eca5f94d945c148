"""The checks of subscriptions in a job: a thread beside its steps.

What has expired or is evicted of the job's own subscription the job acks by itself, since nobody
else may write its cursors. And it takes a seat among those who can make the checks of all topics;
see `sequitur.pipelines.subscriptions.watch`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

from sequitur.consumer import ConsumerError
from sequitur.consumer.subscription.detection import FindingKind
from sequitur.consumer.subscription.registry import SubscriptionRecord, SubscriptionType
from sequitur.consumer.subscription.survey import due_acks
from sequitur.pipelines._errors import ReorderError, SubscriptionFencedError
from sequitur.pipelines.subscriptions.backlog import Surveyor
from sequitur.pipelines.subscriptions.checks import Checks, cuts
from sequitur.pipelines.subscriptions.cursor_moves import finish_reset
from sequitur.pipelines.subscriptions.skipped_copies import copy_skipped
from sequitur.pipelines.subscriptions.watch import INTERVAL_S, Leadership

if TYPE_CHECKING:
    from collections.abc import Collection

    from sequitur.consumer.subscription.policies import PoliciesInForce
    from sequitur.consumer.subscription.registry import Changes, Registry
    from sequitur.pipelines.kafka.outages import Outages
    from sequitur.pipelines.ordering.subscribed import JobSubscription
    from sequitur.producer import KafkaSettings

_POLL_S: Final = 0.1
_TOLD_EACH_S: Final = 60.0


def _may_ack(policies: PoliciesInForce) -> bool:
    """Tell whether anything may expire or be evicted."""
    quota = policies.backlog_quota
    return bool(policies.message_ttl_s) or (quota.limit_bytes, quota.limit_s) != (None, None)


class SubscriptionChecks:
    """Checks again and again, from entering to leaving.

    Args:
        kafka: How to reach the brokers.
        subscription: The job's.
        topics: The topics it reads.
        outages: The job's log.
        copy_to: Topic that messages are copied to before they are evicted; None: they are not.
        replication_factor: How many replicas the registry gets if it is not there.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        subscription: JobSubscription,
        topics: Collection[str],
        outages: Outages,
        *,
        copy_to: str | None,
        replication_factor: int,
    ) -> None:
        self._kafka = kafka
        self._subscription = subscription
        self._topics = sorted(topics)
        self._outages = outages
        self._copy_to = copy_to
        self._surveyor = Surveyor(kafka, replication_factor=replication_factor)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="subscription-checks", daemon=True)
        self._told: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._register()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _register(self) -> None:
        """Put the subscription into the registry, or note that it is on further topics."""
        name, now_ms = self._subscription.name, time.time_ns() // 1_000_000

        def register(registry: Registry) -> Changes:
            known = registry.subscriptions.get(name)
            if known is None:
                exclusive = SubscriptionType.EXCLUSIVE
                made = SubscriptionRecord(
                    name, tuple(self._topics), exclusive, now_ms, last_connected_ms=now_ms
                )
                return registry.created(made)
            topics = tuple(sorted({*known.topics, *self._topics}))
            if topics == known.topics:
                return {}
            changed = replace(known, topics=topics)
            return {changed.key: changed.encode()}

        self._surveyor.registry.change(register)
        # A reset whose process died before it had said so in the registry.
        finish_reset(self._surveyor.registry, name, self._subscription.state)

    def _run(self) -> None:
        with Leadership(self._kafka) as leadership, contextlib.ExitStack() as led:
            checks: Checks | None = None
            due_s = 0.0
            while not self._ends.is_set():
                leads = leadership.poll(_POLL_S)
                if time.monotonic() < due_s:
                    continue
                due_s = time.monotonic() + INTERVAL_S
                try:
                    self._ack_due()
                    if leads and checks is None:
                        checks = Checks(self._surveyor, copy_to=self._copy_to)
                        led.callback(checks.close)
                    if leads and checks is not None:
                        for found in checks.run().findings:
                            if found.kind is not FindingKind.OWNED:
                                self._tell(f"{found.kind.value}: {found.topic}: {found.sentence}")
                    if not leads:
                        checks = None
                except SubscriptionFencedError as error:
                    # Of the job's own subscription its next step tells; else another one leads.
                    checks = None
                    self._tell(str(error))
                except (ReorderError, ConsumerError) as error:
                    self._tell(f"subscriptions are not checked: {error}")

    def _ack_due(self) -> None:
        """Ack what has expired, or is evicted, of the job's own subscription."""
        registry = self._surveyor.registry.read()
        record = registry.subscriptions.get(self._subscription.name)
        if record is None or not any(map(_may_ack, map(registry.policies_of, self._topics))):
            return
        survey = self._surveyor.survey(self._topics)
        survey = survey.with_held(
            record.name, self._subscription.copies(), epoch=self._subscription.state.epoch
        )
        due = due_acks(survey, record, cuts(survey, self._surveyor.topics))
        for where in survey.logs:
            of_partition = [one for one in due if (one.topic, one.partition) == where]
            if not of_partition:
                continue
            skipped = [one for one in of_partition if one.why is FindingKind.EVICTED]
            if self._copy_to is not None and skipped:
                cursor = survey.held_of(record.name, where).cursor
                copy_skipped(self._kafka, self._copy_to, skipped, cursor)
            self._subscription.expire(where, of_partition[-1].stop, end=survey.logs[where].end)
            for one in of_partition:
                self._outages.tell(
                    f"{one.why.value}: {one.topic}, partition {one.partition}: {one.messages:,} "
                    f"messages from {one.first} to before {one.stop} are acked and not processed"
                )
        if due:
            self._subscription.store()

    def _tell(self, line: str) -> None:
        """Tell the job's log, each line once a minute."""
        now_s = time.monotonic()
        if now_s - self._told.get(line, now_s - _TOLD_EACH_S) >= _TOLD_EACH_S:
            self._told[line] = now_s
            self._outages.tell(line)
