"""What all parts of a running job share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from sequitur.base.outages import Outages
    from sequitur.consumer import FoldLimits, ReorderSettings, StepDone, StepEntry
    from sequitur.kafka.admin import KafkaTopics
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.ordering.ordered_step import StepFunction
    from sequitur.pipelines.ordering.subscribed import JobSubscription
    from sequitur.pipelines.store.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """What all parts of a running job share.

    Attributes:
        spark: The session.
        kafka: How to reach the brokers.
        settings: The job's settings.
        topics: Admin client.
        checkpoint: The job's folder.
        outages: How long what passes by itself is waited for, and the job's log.
        now_ms: The wall clock.
        on_done: Told of each step once it is done.
        is_bounded: Whether the run ends when it has read what is there.
        fold_limits: When runs are folded into what is known of keys.
        subscription: What its steps are acked in; None without one.
        on_step: A function of the user's that is given what steps release; None without one.
    """

    spark: SparkSession
    kafka: KafkaSettings = field(repr=False)
    settings: ReorderSettings
    topics: KafkaTopics
    checkpoint: Checkpoint
    outages: Outages
    now_ms: Callable[[], int]
    on_done: Callable[[StepEntry, StepDone], None]
    is_bounded: bool
    fold_limits: FoldLimits
    on_step: StepFunction | None = None
    subscription: JobSubscription | None = None
