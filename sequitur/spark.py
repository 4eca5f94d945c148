"""For programs of your own on Spark: into Kafka exactly once, and the reorder job step by step.

Loaded when it is imported, and by nothing else of Sequitur's public names: it needs pyspark.
"""

from sequitur.base.extras import load

for _package in ("pyspark", "pyarrow"):
    load(_package, "sequitur.spark")

from sequitur.pipelines.ordering.job import reorder
from sequitur.pipelines.ordering.job_report import JobReport
from sequitur.pipelines.ordering.ordered_step import OrderedStep, StepFunction
from sequitur.pipelines.spark_sink.exactly_once import BatchWritten, ExactlyOnceKafka

__all__ = [
    "BatchWritten",
    "ExactlyOnceKafka",
    "JobReport",
    "OrderedStep",
    "StepFunction",
    "reorder",
]
