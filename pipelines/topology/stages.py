"""Running a topology on the events of a step, in Spark's tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sequitur.consumer.topology.step.run import StepRun as Run
from sequitur.pipelines.topology.crashes import SurvivingTasks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from sequitur.pipelines.store.files import Location
    from sequitur.pipelines.topology.batch import FileBatch, FileInput


class StepRun(Run):
    """Runs a topology on the events of a step.

    Args:
        spark: The session.
        batch: What all tasks share; its folders are there.
        givens: The events of each task of the first stage.
        states: Files of what bolts kept in the step before.
        max_crashes: See `SurvivingTasks`.
    """

    def __init__(
        self,
        spark: SparkSession,
        batch: FileBatch,
        givens: Sequence[FileInput],
        states: Mapping[tuple[str, int], Location],
        *,
        max_crashes: int,
    ) -> None:
        tasks = SurvivingTasks(spark, batch.path("work"), max_crashes=max_crashes)
        super().__init__(batch, givens, states, tasks)
