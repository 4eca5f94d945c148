"""The state of a job: kept by programs where they reach its folder, else by plans of Spark's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sequitur.consumer import ReorderMode
from sequitur.pipelines.ordering.keys import KeyHistory
from sequitur.pipelines.ordering.local_keys import LocalKeyHistory
from sequitur.pipelines.ordering.local_runs import LocalRuns
from sequitur.pipelines.ordering.runs import SortedRuns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sequitur.consumer import ReorderSettings
    from sequitur.pipelines.sink.sink import Outputs
    from sequitur.pipelines.sink.topic_limits import TopicLimits
    from sequitur.pipelines.store.checkpoint import Checkpoint


def open_state(
    spark: SparkSession,
    checkpoint: Checkpoint,
    settings: ReorderSettings,
    outputs: Outputs,
    limits: TopicLimits,
) -> tuple[SortedRuns, KeyHistory]:
    """Return the runs of a checkpoint, and how far keys have been released.

    Args:
        spark: The session.
        checkpoint: The job's folder.
        settings: The job's settings.
        outputs: The output topics.
        limits: What the output topics take of one record.
    """
    if checkpoint.local(checkpoint.root) is None:
        runs = SortedRuns(spark, checkpoint, settings, outputs, limits)
        return runs, KeyHistory(spark, checkpoint, settings.mode, runs)
    local = LocalRuns(spark, checkpoint, settings, outputs, limits)
    if settings.mode is ReorderMode.LATEST:
        return local, KeyHistory(spark, checkpoint, settings.mode, local)
    return local, LocalKeyHistory(spark, checkpoint, local, outputs.released.partitions)
