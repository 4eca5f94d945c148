"""The state of a job: kept by programs where they reach its folder, else by plans of Spark's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumer import ReorderMode
from pipelines._keys import KeyHistory
from pipelines._local_keys import LocalKeyHistory
from pipelines._local_runs import LocalRuns
from pipelines._runs import SortedRuns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consumer import ReorderSettings
    from pipelines._checkpoint import Checkpoint
    from pipelines._sink import Outputs


def open_state(
    spark: SparkSession, checkpoint: Checkpoint, settings: ReorderSettings, outputs: Outputs
) -> tuple[SortedRuns, KeyHistory]:
    """The runs of a checkpoint, and how far keys have been released.

    Args:
        spark: The session.
        checkpoint: The job's folder.
        settings: The job's settings.
        outputs: The output topics.
    """
    partitions = outputs.released.partitions
    if checkpoint.local(checkpoint.root) is None:
        runs = SortedRuns(spark, checkpoint, settings.event_time, partitions)
        return runs, KeyHistory(spark, checkpoint, settings.mode, runs)
    local = LocalRuns(spark, checkpoint, settings, outputs)
    if settings.mode is ReorderMode.LATEST:
        return local, KeyHistory(spark, checkpoint, settings.mode, local)
    return local, LocalKeyHistory(spark, checkpoint, local, partitions)
