"""What all parts of a running job share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from sequitur.base.retry import Outages
    from sequitur.consumer import FoldLimits, ReorderSettings, StepDone, StepEntry
    from sequitur.kafka.admin import KafkaTopics
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.ordering.ordered_step import StepFunction
    from sequitur.pipelines.ordering.subscribed import JobSubscription
    from sequitur.pipelines.sink.sink import TopicSink
    from sequitur.pipelines.store.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """What all parts of a running job share."""

    spark: SparkSession
    kafka: KafkaSettings = field(repr=False)  # how to reach the brokers
    settings: ReorderSettings
    topics: KafkaTopics  # admin client
    checkpoint: Checkpoint
    sink: TopicSink  # writes what steps send out
    outages: Outages  # how long what passes by itself is waited for, and the job's log
    now_ms: Callable[[], int]  # the wall clock
    on_done: Callable[[StepEntry, StepDone], None]  # told of each step once it is done
    is_bounded: bool  # whether the run ends when it has read what is there
    fold_limits: FoldLimits  # when runs are folded into what is known of keys
    # a function of the user's that is given what steps release; None without one
    on_step: StepFunction | None = None
    subscription: JobSubscription | None = None  # what its steps are acked in; None without one
