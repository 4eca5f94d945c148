"""The checks of subscriptions in a job: a thread beside its steps.

The job acks by itself what has expired or is evicted of its own subscription, since nobody else may
write its cursors. It also joins the processes that can make the checks of all topics, see
`sequitur.consumer.subscription.led_checks`.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from sequitur.consumer.subscription.backlog import Surveyor
from sequitur.consumer.subscription.checks import Checks
from sequitur.consumer.subscription.cursor_moves import finish_reset
from sequitur.consumer.subscription.detection import FindingKind
from sequitur.consumer.subscription.duty import Duty, ToldOnce
from sequitur.consumer.subscription.led_checks import INTERVAL_S, Leadership, LedChecks
from sequitur.consumer.subscription.skipping import skip_due
from sequitur.errors import ConsumerError, ReorderError, SubscriptionFencedError
from sequitur.pipelines.ordering.job_input import input_topics

if TYPE_CHECKING:
    from collections.abc import Collection

    from sequitur.base.retry import Outages
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.ordering.context import JobContext
    from sequitur.pipelines.ordering.job_subscription import JobSubscription


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
        replication_factor: int,
    ) -> None:
        self._kafka = kafka
        self._subscription = subscription
        self._topics = topics
        self._outages = outages
        self._surveyor = Surveyor(kafka, replication_factor=replication_factor)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="subscription-checks", daemon=True)
        self._tell = ToldOnce(outages.tell)

    def __enter__(self) -> Self:
        self._subscription.register(self._topics)
        # The process of a reset may have died before it wrote that to the registry.
        finish_reset(self._surveyor.registry, self._subscription.name, self._subscription.state)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        make = partial(Checks, self._surveyor)
        with Leadership(self._kafka) as leadership, LedChecks(make) as checks:
            round_ = Duty(
                lambda: self._look(checks if leadership.leads else None),
                every_s=INTERVAL_S,
                passes=(ReorderError, ConsumerError),
                tell=lambda error: self._tell(
                    # The next step reports a lost subscription of its own; else another leads.
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
        """Ack what is due in the job's own subscription; make all checks if this process leads."""
        self._skip_due()
        for found in checks.run().findings if checks is not None else ():
            if found.kind is not FindingKind.OWNED:
                self._tell(f"{found.kind.value}: {found.topic}: {found.sentence}")

    def _skip_due(self) -> None:
        """Ack expired and evicted rows of the job's own subscription."""
        for one in skip_due(self._surveyor, self._subscription, self._subscription.topics):
            self._outages.tell(f"{one.why.value}: {one.topic}, {one.sentence}")


def checks_of(job: JobContext, subscription: JobSubscription) -> SubscriptionChecks:
    return SubscriptionChecks(
        job.kafka,
        subscription,
        input_topics(job),
        job.outages,
        replication_factor=job.settings.replication_factor,
    )
