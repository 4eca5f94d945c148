"""The checks of subscriptions in a job: a thread beside its steps.

What has expired or is evicted of the job's own subscription the job acks by itself, since nobody
else may write its cursors. And it takes a seat among those who can make the checks of all topics;
see `sequitur.consumer.subscription.watch`.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from sequitur.base.process import wall_clock_ms
from sequitur.consumer import ConsumerError
from sequitur.consumer.subscription.backlog import Surveyor
from sequitur.consumer.subscription.checks import Checks
from sequitur.consumer.subscription.cursor_moves import finish_reset
from sequitur.consumer.subscription.detection import FindingKind
from sequitur.consumer.subscription.names import refuse_another
from sequitur.consumer.subscription.registry import SubscriptionRecord, SubscriptionType
from sequitur.consumer.subscription.skipping import skip_due
from sequitur.consumer.subscription.watch import INTERVAL_S, Leadership, LedChecks
from sequitur.errors import ReorderError, SubscriptionFencedError

if TYPE_CHECKING:
    from collections.abc import Collection

    from sequitur.base.retry import Outages
    from sequitur.consumer.subscription.registry import Changes, Registry
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.ordering.subscribed import JobSubscription

_POLL_S: Final = 0.1
_TOLD_EACH_S: Final = 60.0


class SubscriptionChecks:
    """Checks again and again, from entering to leaving."""

    def __init__(
        self,
        kafka: KafkaSettings,
        subscription: JobSubscription,
        topics: Collection[str],
        outages: Outages,
        *,
        evicted_topic: str | None,
        max_held_bytes: int,
        replication_factor: int,
    ) -> None:
        self._kafka = kafka
        self._subscription = subscription
        self._topics = sorted(topics)
        self._outages = outages
        self._owned: dict[str, Any] = {
            "evicted_topic": evicted_topic,
            "max_held_bytes": max_held_bytes,
        }
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
        name, now_ms = self._subscription.name, wall_clock_ms()
        partition = self._subscription.partition

        def register(registry: Registry) -> Changes:
            known = registry.find(name)
            if known is None:
                made = SubscriptionRecord(
                    name,
                    tuple(self._topics),
                    SubscriptionType.EXCLUSIVE,
                    now_ms,
                    last_connected_ms=now_ms,
                    partition=partition,
                    group=self._subscription.group,
                    **self._owned,
                )
                return registry.created(made)
            # Another may have created one of that name since the job has looked.
            refuse_another(known, SubscriptionType.EXCLUSIVE, known.topics)
            topics = tuple(sorted({*known.topics, *self._topics}))
            changed = replace(known, topics=topics, partition=partition, **self._owned)
            if changed == known:
                return {}
            return {changed.key: changed.encode()}

        self._surveyor.registry.change(register, subscription=name)
        # A reset whose process died before it had said so in the registry.
        finish_reset(self._surveyor.registry, name, self._subscription.state)

    def _register_planned(self) -> None:
        """Note topics that a pattern has come to match, so that nothing of them is deleted."""
        topics = {*self._topics, *self._subscription.planned_topics}
        if len(topics) > len(self._topics):
            self._topics = sorted(topics)
            self._register()

    def _run(self) -> None:
        make = partial(Checks, self._surveyor)
        with Leadership(self._kafka) as leadership, LedChecks(make) as checks:
            due_s = 0.0
            while not self._ends.is_set():
                leads = leadership.poll(_POLL_S)
                if not leads:
                    checks.close()
                if time.monotonic() < due_s:
                    continue
                due_s = time.monotonic() + INTERVAL_S
                try:
                    self._register_planned()
                    self._skip_due()
                    for found in checks.run().findings if leads else ():
                        if found.kind is not FindingKind.OWNED:
                            self._tell(f"{found.kind.value}: {found.topic}: {found.sentence}")
                except SubscriptionFencedError as error:
                    # Of the job's own subscription its next step tells; else another one leads.
                    self._tell(str(error))
                except (ReorderError, ConsumerError) as error:
                    self._tell(f"subscriptions are not checked: {error}")

    def _skip_due(self) -> None:
        """Ack what has expired, or is evicted, of the job's own subscription."""
        for one in skip_due(self._surveyor, self._subscription, self._topics):
            self._outages.tell(f"{one.why.value}: {one.topic}, {one.sentence}")

    def _tell(self, line: str) -> None:
        """Tell the job's log, each line once a minute."""
        now_s = time.monotonic()
        if now_s - self._told.get(line, now_s - _TOLD_EACH_S) >= _TOLD_EACH_S:
            self._told[line] = now_s
            self._outages.tell(line)
