"""Run by spark-submit: an output partition whose first attempt hangs, for a copy to write it.

    speculation_job.py BOOTSTRAP_SERVERS TOPIC PLAN ROWS

The topic has one partition. Prints how many rows Spark was told of in the end.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from sequitur.base.stored import load
from sequitur.pipelines.rows.record_layout import Headers, record_batches
from sequitur.pipelines.sink.block_writer import BlockWriter
from sequitur.pipelines.sink.step_plans import StepPlan
from sequitur.pipelines.spark.tasks import each_partition
from sequitur.producer import KafkaSettings
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.pipelines.rows.record_layout import KafkaBatch

_TIMEOUT_S = 5 * PATIENCE_S


def main(bootstrap_servers: str, topic: str, document: str, rows: str) -> None:
    """Write that many rows as the step whose plan is given."""
    kafka = KafkaSettings(bootstrap_servers=bootstrap_servers)
    plan = load(StepPlan, json.loads(document))
    writer = BlockWriter(
        kafka=kafka,
        topic=topic,
        plan=plan.topics[topic],
        identity=plan.identity,
        begun_s=None,
    )

    def hanging(limit: int) -> Iterator[KafkaBatch]:
        numbers = pa.chunked_array([[b"%d" % number for number in range(int(rows))]], pa.binary())
        no_headers = Headers(np.zeros(int(rows), np.int64), None)
        yield from record_batches(numbers, numbers, no_headers, np.arange(int(rows)), limit)
        context = TaskContext.get()
        if context is None or context.attemptNumber() > 0:
            return
        # Its rows are sent, but for the last batch. It must not end by itself: a failure that
        # reached Spark before the copy's success would end the job.
        deadline = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < deadline:
            time.sleep(0.05)
        raise TimeoutError("no copy of this task has written the partition")

    spark = SparkSession.builder.getOrCreate()
    written = each_partition(spark, lambda number: writer.write([(number, hanging)]), 1)
    print("written", sum(sum(counts.values()) for counts in written))  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
