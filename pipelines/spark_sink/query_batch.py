"""What a function of `foreachBatch` can learn of its query, which Spark does not tell it."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from sequitur.errors import CheckpointError, WrongBatchError
from sequitur.pipelines.spark_sink.batch_source import StreamBatch
from sequitur.pipelines.store.hadoop_folder import HadoopFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_QUERY_ID: Final = "sql.streaming.queryId"
"""A property of the thread in which a query runs (`StreamExecution.QUERY_ID_KEY`)."""
_FILES: Final = re.compile(r'\{"logOffset":(\d+)\}')
"""An offset of Spark's file source."""


def stream_batch(spark: SparkSession, batch_id: int) -> tuple[StreamBatch, str | None]:
    """Return the query and the batch, and the run of the query; call it in `foreachBatch`.

    After each start there is another run, and a run gives a batch once. None if it is not known.
    """
    query = spark.sparkContext.getLocalProperty(_QUERY_ID)
    if query is None:
        raise WrongBatchError(
            "this is not a batch of a streaming query: give the sink to foreachBatch, or write "
            "a DataFrame once by write(rows, name=...). Spark tells a query only to the "
            "thread that it calls (PYSPARK_PIN_THREAD has to be true, which is the default)"
        )
    plan, run = _plan_and_run(spark, query, batch_id)
    return StreamBatch(query, batch_id, plan), run


def _plan_and_run(spark: SparkSession, query: str, batch_id: int) -> tuple[str | None, str | None]:
    """Return names for Spark's plan of a batch and for the run; None if Spark does not say."""
    run = None
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - Spark offers no other way to its plans
    java_session: Any = spark._jsparkSession  # noqa: SLF001
    try:
        running = java_session.sharedState().activeStreamingQueries()
        execution = running.get(jvm.java.util.UUID.fromString(query))
        run = str(execution.runId())
        offsets = execution.offsetLog().get(batch_id).get().offsets()
        several = [offsets.apply(number) for number in range(offsets.size())]
        plan = [str(one.get().json()) if one.isDefined() else "" for one in several]
        root = str(execution.resolvedCheckpointRoot())
        for source, end in enumerate(plan):
            if (files := _FILES.fullmatch(end)) is not None:
                plan[source] += _files_of(spark, f"{root}/sources/{source}", files[1])
    except (AttributeError, CheckpointError, Py4JError, PySparkException):
        return None, run
    return hashlib.sha256("\n".join(plan).encode()).hexdigest(), run


def _files_of(spark: SparkSession, folder: str, number: str) -> str:
    """Return the files of a batch of the file source, whose offset is but a number.

    Spark has listed them before the batch, and lists each of ten batches with all before.
    """
    log = HadoopFolder(spark, folder)
    return next((log.read(name) for name in (number, f"{number}.compact") if log.exists(name)), "")
