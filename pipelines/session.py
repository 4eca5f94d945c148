"""The Spark session of the pipelines: one place for what they need of Spark."""

from __future__ import annotations

import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import psutil
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from sequitur.base.program import is_debugging
from sequitur.errors import ConnectorMissingError
from sequitur.pipelines.jars import jars_of_spark
from sequitur.pipelines.launch import DEFAULT_MASTER
from sequitur.pipelines.python_path import SAFE, SAFE_PATH
from sequitur.pipelines.spark_settings import (
    JARS,
    MASTER,
    is_local,
    merged_jars,
    spark_defaults,
    spark_submit_flags,
    submitted_properties,
)
from sequitur.pipelines.submitted import is_submitted, java_locale

if TYPE_CHECKING:
    from collections.abc import Mapping

_KAFKA_SOURCE: Final = "org.apache.spark.sql.kafka010.KafkaSourceProvider"

_REQUIRED: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    # A plan that changes with the data would not repeat a step the same way.
    "spark.sql.adaptive.enabled": "false",
    # Python's tasks handle keys and values in columns with 32-bit offsets.
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
}
"""What no setting of the user's changes: a job would not be right with another value."""
_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A slot that a step's bolt leaves goes to reading the next batch, in its turn.
    "spark.scheduler.mode": "FAIR",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
    # With it the processes of queries have a different environment from other tasks, and so
    # a daemon of their own: twice the imports, and twice the memory.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    # A module in the working folder would hide Python's own of that name.
    f"spark.executorEnv.{SAFE_PATH}": SAFE,
}
_LOCAL: Final[Mapping[str, str]] = {
    # A task in Python waits 30 ms less for its turn. Elsewhere the socket's path may be too long.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "sequitur.pipelines.python_daemon",
}
_HOST: Final = "spark.driver.host"
_BIND_ADDRESS: Final = "spark.driver.bindAddress"
_LOOPBACK: Final = "127.0.0.1"
_ANY_ADDRESS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to
_MADE_UP: Final = {
    MASTER: ("--master", "MASTER"),
    "spark.app.name": ("--name", "SPARK_YARN_APP_NAME"),
}
"""What spark-submit fills in where it was told none: the flag and the variable that tell it."""

_logger: Final = logging.getLogger("sequitur.spark")


def log_level() -> str:
    """Return Spark's log level: with `--debug` it shows errors with their stacks."""
    return "ERROR" if is_debugging() else "OFF"


def build_session(
    name: str,
    *,
    master: str | None = None,
    options: Mapping[str, str] | None = None,
    checkpoint: str = "",
    leaves_ctrl_c: bool = False,
) -> SparkSession:
    """The Spark session, started where there is none.

    What Spark was told by its command line wins over its `spark-defaults.conf`, and that wins over
    our settings, but for those that a job needs: where one of them differs, that is logged. Started
    by spark-submit, the session keeps the jars given there. Otherwise the locked jars, which are
    fetched if need be, are added to those that Spark has.
    """
    options = {**(options or {}), **({MASTER: master} if master else {})}
    running = SparkContext._active_spark_context  # noqa: SLF001 - nothing else tells of it
    told = _told(options) if running is None else dict(running.getConf().getAll())
    # Without it the workers start whatever `python3` is on the path.
    os.environ.setdefault("PYSPARK_PYTHON", told.get("spark.pyspark.python") or sys.executable)
    given = {**told, **options}
    ours = {"spark.app.name": name, MASTER: DEFAULT_MASTER, **_DEFAULTS}
    if is_local(given.get(MASTER, DEFAULT_MASTER)):
        ours.update(_LOCAL)
        if _HOST not in given:
            # Executors reach only an address that is bound; a wildcard binds all.
            bound = ours.setdefault(_BIND_ADDRESS, given.get(_BIND_ADDRESS, _LOOPBACK))
            ours[_HOST] = _LOOPBACK if bound in _ANY_ADDRESS else bound
    chosen = {key: value for key, value in ours.items() if key not in told}
    chosen.update(_REQUIRED)
    chosen.update(options)
    if running is None and not is_submitted():
        jars = jars_of_spark(checkpoint)
        _add_to_class_path(jars)
        chosen[JARS] = merged_jars(given.get(JARS), told.get(JARS), jars)
    for key, value in _REQUIRED.items():
        if key not in options and told.get(key, value).lower() != value.lower():
            _logger.warning("%s is %s in this job, not %s as given", key, value, told[key])
    builder = SparkSession.builder
    for key, value in chosen.items():
        builder = builder.config(key, value)
    if running is None and leaves_ctrl_c:
        _start_context(chosen)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    _require_connector(spark)
    return spark


def _start_context(settings: Mapping[str, str]) -> None:
    """Start Spark in another thread: in the main thread PySpark would handle Ctrl-C."""
    conf = SparkConf().setAll(list(settings.items()))
    with ThreadPoolExecutor(1) as thread:
        thread.submit(SparkContext.getOrCreate, conf).result()


def _told(options: Mapping[str, str]) -> dict[str, str]:
    """Start the JVM, if there is none, and return what Spark was told by its own ways.

    Before there is a JVM, nobody knows: Spark reads its files and flags there.
    """
    launch = SparkConf(loadDefaults=False)
    for key, value in options.items():
        launch.set(key, value)
    if JARS in options:
        launch.set(JARS, merged_jars(spark_defaults().get(JARS), options[JARS]))
    if not is_submitted():
        os.environ.update(java_locale())
    SparkContext._ensure_initialized(conf=launch)  # noqa: SLF001
    told = dict(SparkConf().getAll())
    return {key: value for key, value in told.items() if key not in _MADE_UP or _is_asked_for(key)}


def _is_asked_for(key: str) -> bool:
    """Tell whether somebody has set a setting that Spark makes up otherwise."""
    # The JVM's own variables: Spark adds defaults of its own to Python's.
    java: Any = SparkContext._jvm.java.lang  # type: ignore[union-attr] # noqa: SLF001
    told = spark_submit_flags(psutil.Process(java.ProcessHandle.current().pid()).cmdline())
    if told is None:
        return True  # nothing was made up
    flag, variable = _MADE_UP[key]
    is_in_files = key in submitted_properties(told)
    return bool({flag, key} & told.keys()) or is_in_files or bool(java.System.getenv(variable))


def _add_to_class_path(jars: str) -> None:
    """Add jars to the driver's class path, beside what it has: the driver starts without ours."""
    java: Any = SparkContext._jvm.java  # type: ignore[union-attr] # noqa: SLF001
    loader = java.lang.Thread.currentThread().getContextClassLoader()
    for jar in jars.split(","):
        loader.addURL(java.io.File(jar).toURI().toURL())


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
