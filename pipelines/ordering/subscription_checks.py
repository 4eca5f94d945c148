"""The checks of subscriptions in a job: a thread beside its steps.

What has expired or is evicted of the job's own subscription the job acks by itself, since nobody
else may write its cursors. And it takes a seat among those who can make the checks of all topics;
see `sequitur.consumer.subscription.watch`.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from sequitur.base.process import wall_clock_ms
from sequitur.consumer import ConsumerError
from sequitur.consumer.subscription.backlog import Surveyor
from sequitur.consumer.subscription.checks import Checks
from sequitur.consumer.subscription.cursor_moves import finish_reset
from sequitur.consumer.subscription.detection import FindingKind
from sequitur.consumer.subscription.duty import Duty, ToldOnce
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
        self._tell = ToldOnce(outages.tell)

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
            round_ = Duty(
                lambda: self._look(checks if leadership.leads else None),
                every_s=INTERVAL_S,
                passes=(ReorderError, ConsumerError),
                tell=lambda error: self._tell(
                    # Of the job's own subscription its next step tells; else another one leads.
                    str(error)
                    if isinstance(error, SubscriptionFencedError)
                    else f"subscriptions are not checked: {error}"
                ),
            )
            while not self._ends.is_set():
                if not leadership.poll(_POLL_S):
                    checks.close()
                round_.run()

    def _look(self, checks: LedChecks | None) -> None:
        """Ack what is due of the job's own subscription; make the checks of all if it leads."""
        self._register_planned()
        self._skip_due()
        for found in checks.run().findings if checks is not None else ():
            if found.kind is not FindingKind.OWNED:
                self._tell(f"{found.kind.value}: {found.topic}: {found.sentence}")

    def _skip_due(self) -> None:
        """Ack what has expired, or is evicted, of the job's own subscription."""
        for one in skip_due(self._surveyor, self._subscription, self._topics):
            self._outages.tell(f"{one.why.value}: {one.topic}, {one.sentence}")
