"""For streams and DataFrames of your own in Spark: into Kafka exactly once.

Loaded when it is imported, and by nothing else of Sequitur's public names: it needs pyspark.
"""

from sequitur.pipelines.spark_sink.exactly_once import BatchWritten, ExactlyOnceKafka

__all__ = ["BatchWritten", "ExactlyOnceKafka"]
