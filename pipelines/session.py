"""The Spark session of the pipelines: one place for what they need of Spark."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from pyspark import SparkConf
from pyspark.sql import SparkSession

from sequitur.pipelines._errors import ConnectorMissingError
from sequitur.pipelines.jars import jars_of_spark
from sequitur.pipelines.launch import DEFAULT_MASTER
from sequitur.producer.program import is_debugging

if TYPE_CHECKING:
    from collections.abc import Mapping

_KAFKA_SOURCE: Final = "org.apache.spark.sql.kafka010.KafkaSourceProvider"

_OURS: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    # A plan that changes with the data would not repeat a step the same way.
    "spark.sql.adaptive.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
    # What Python's tasks do with keys and values is written for columns with 32-bit offsets.
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
    # With it the processes of queries have another environment than those of other tasks, and so
    # a daemon of their own: twice the imports, and twice the memory.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
}
_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    # A slot that one of a step's bolts leaves goes to the reading of the next, in its turn.
    "spark.scheduler.mode": "FAIR",
}
_LOCAL: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # A task in Python waits 30 ms less for its turn. Elsewhere the socket's path may be too long.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "sequitur.pipelines.python_daemon",
}


def log_level() -> str:
    """What Spark may say on standard error: with `--debug` its errors, with their stacks."""
    return "ERROR" if is_debugging() else "OFF"


def is_submitted() -> bool:
    """Whether spark-submit started this process: then the JVM runs already, with its own jars."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def build_session(
    name: str,
    *,
    master: str | None = None,
    options: Mapping[str, str] | None = None,
    checkpoint: str = "",
) -> SparkSession:
    """The Spark session, started where there is none.

    Started by spark-submit, the session keeps the master, jars and options given there. Otherwise
    the locked jars are fetched if need be and the master is `local[2,4]`.

    Args:
        name: Application name.
        master: Spark master, if not the one of spark-submit or `local[2,4]`.
        options: Further Spark settings; they win over ours.
        checkpoint: Where the job's is: Spark needs more jars to write to S3.

    Raises:
        ConnectorMissingError: spark-submit was given no `--jars` with the Kafka connector.
        JarError: The locked jars cannot be had.
    """
    # Without it the workers start whatever `python3` is on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    given = SparkConf()
    chosen = dict(_OURS)
    chosen.update((key, value) for key, value in _DEFAULTS.items() if not given.contains(key))
    where = master or given.get("spark.master") or DEFAULT_MASTER
    if where.startswith("local"):
        chosen.update((key, value) for key, value in _LOCAL.items() if not given.contains(key))
    if not is_submitted():
        jars = [given.get("spark.jars", ""), jars_of_spark(checkpoint)]
        chosen["spark.jars"] = ",".join(filter(None, jars))
    chosen.update(options or {})
    builder = SparkSession.builder.appName(name).master(where)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    _require_connector(spark)
    return spark


def _require_connector(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm  # noqa: SLF001 - Spark offers no other way to a class
    if jvm is None:
        raise ConnectorMissingError("this Spark session has no JVM of its own (Spark Connect)")
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        loader.loadClass(_KAFKA_SOURCE)
    except Exception as error:
        raise ConnectorMissingError(
            "Spark's Kafka connector is not on the class path: "
            "start with spark-submit "
            '--jars "$(python -m sequitur.pipelines.jars list spark | paste -sd,)"'
        ) from error
