"""A job's subscription is read before its checkpoint is opened: the epoch names its folder.

It is taken once the checkpoint is the job's, so that a job that is refused there stops nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sequitur.consumer.subscription.backlog import Surveyor
from sequitur.consumer.subscription.claims import LEASE_S, HeldLease
from sequitur.consumer.subscription.cursor_store import CursorStore
from sequitur.consumer.subscription.names import may_take
from sequitur.consumer.subscription.registry import SubscriptionType
from sequitur.consumer.subscription.registry_store import RegistryStore
from sequitur.consumer.subscription.stored_records import nothing_stored
from sequitur.pipelines.ordering.job_input import input_topics
from sequitur.pipelines.ordering.subscribed import JobSubscription
from sequitur.pipelines.ordering.subscription_checks import SubscriptionChecks

if TYPE_CHECKING:
    import contextlib

    from sequitur.base.retry import Outages
    from sequitur.consumer import ReorderSettings
    from sequitur.consumer.subscription.cursor_store import CursorOwner
    from sequitur.kafka.admin import KafkaTopics
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.ordering.context import JobContext


def subscribe(
    kafka: KafkaSettings,
    settings: ReorderSettings,
    topics: KafkaTopics,
    outages: Outages,
    opened: contextlib.ExitStack,
) -> JobSubscription | None:
    """Read the subscription of a job, if it has one; it is taken with the checkpoint."""
    if (name := settings.subscription) is None:
        return None
    factor = settings.replication_factor
    store = CursorStore(kafka, replication_factor=factor, outages=outages)
    registry = RegistryStore(kafka, replication_factor=factor, outages=outages).read()
    record = registry.find(name)
    noted = registry.partition_of(name)

    def take() -> CursorOwner:
        # Whoever has it: the checkpoint's owner has decided which job goes on.
        followed = store.follow(name, partition=noted)
        return opened.enter_context(store.take(name, lease=HeldLease(LEASE_S), followed=followed))

    stored = store.read(name, partition=noted)
    if stored is None and record is not None:
        return JobSubscription(name, stored, take, topics, outages, lost=nothing_stored(name))
    return JobSubscription(name, stored, take, topics, outages)


def require_name(job: JobContext) -> None:
    """Check that a job may have the name of its subscription, if it has one.

    To be called before the subscription is taken from anybody.
    """
    if job.subscription is not None:
        may_take(
            Surveyor(job.kafka, outages=job.outages),
            job.subscription.name,
            SubscriptionType.EXCLUSIVE,
            input_topics(job),
            grows=True,
        )


def checks_of(job: JobContext, subscription: JobSubscription) -> SubscriptionChecks:
    """Return the checks that a job with a subscription makes while it runs."""
    return SubscriptionChecks(
        job.kafka,
        subscription,
        input_topics(job),
        job.outages,
        evicted_topic=job.settings.evicted_topic,
        max_held_bytes=job.settings.max_held_bytes,
        replication_factor=job.settings.replication_factor,
    )
