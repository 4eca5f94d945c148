"""The reorder job on Spark: its session, and an orderly end by a signal.

A stop by signal: the running batch ends, Spark commits it, and the job ends with status 0.

Under spark-submit the JVM is our parent. Left alone it would shut Spark down under the running
batch, so it is told otherwise for the two signals:

- SIGTERM comes to one process, and often to the JVM alone: a handler passes it on to us.
- Ctrl-C reaches the whole group, us too, so the JVM ignores SIGINT. It must not even handle it:
  Hadoop runs `chmod` for each local file it creates, and a child process takes over what is ignored
  but not what is handled, so Ctrl-C would end that `chmod`, and with it the batch.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from typing import TYPE_CHECKING, Any, Final, NoReturn

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from sequitur.base.program import run_program
from sequitur.errors import ConsumerError, PipelineError, ProducerError, ReorderError, TopicError
from sequitur.kafka.settings import settings_of
from sequitur.pipelines.ordering.command import JobCommand
from sequitur.pipelines.ordering.preflight import check_before_spark
from sequitur.pipelines.ordering.query import SparkQuery
from sequitur.pipelines.ordering.run import run_reorder
from sequitur.pipelines.ordering.source import KafkaSource
from sequitur.pipelines.ordering.worker_look import WorkerLook
from sequitur.pipelines.python_path import MODULES
from sequitur.pipelines.session import build_session, log_level
from sequitur.pipelines.spark.executors import watched_executors
from sequitur.pipelines.spark.tasks import SparkWorkers, start_python
from sequitur.pipelines.spark_settings import is_local
from sequitur.pipelines.store.hadoop_folder import check_nameable, open_spark_folder, open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from threading import Event

    import typer
    from pyspark.sql import SparkSession

    from sequitur.base.retry import Outages
    from sequitur.consumer.reorder import ReorderSettings
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.ordering.context import JobContext
    from sequitur.pipelines.ordering.engine import ReorderEngine
    from sequitur.pipelines.ordering.opening import ProcessStage
    from sequitur.pipelines.ordering.progress import JobReport
    from sequitur.pipelines.ordering.step import StepFunction
    from sequitur.pipelines.run_options import RunOptions
    from sequitur.pipelines.store.storage import SparkFolder, Storage


class SparkRunner:
    """A session of Spark's, and the machines it has; see `Runner`."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._look: WorkerLook | None = None
        self.workers = SparkWorkers(spark)

    def storage(self, location: str) -> Storage:
        """See `Runner`; as the session's settings understand it."""
        return open_storage(self._spark, location)

    def spark_folder(self, storage: Storage) -> SparkFolder:
        """See `Runner`."""
        return open_spark_folder(self._spark, storage)

    def source(
        self, kafka: KafkaSettings, settings: ReorderSettings, outages: Outages
    ) -> KafkaSource:
        """See `Runner`."""
        return KafkaSource(kafka, settings, self.workers, outages, self._matcher)

    def _matcher(self, pattern: str) -> Callable[[str], bool]:
        """Return what tells whether a name matches by Java's rules, since Spark plans by these."""
        jvm: Any = self._spark.sparkContext._jvm  # noqa: SLF001 - the way to Java's patterns
        try:
            compiled = jvm.java.util.regex.Pattern.compile(pattern)
        except (Py4JError, PySparkException) as error:
            raise TopicError(
                f"input_pattern {pattern!r} is not a Java regular expression"
            ) from error
        return lambda topic: bool(compiled.matcher(topic).matches())

    def query(self, job: JobContext, engine: ReorderEngine, stop: Event) -> SparkQuery:
        """See `Runner`."""
        return SparkQuery(self._spark, job, engine, stop)

    def unfit(self) -> Exception | None:
        """See `Runner`."""
        return None if self._look is None else self._look.failure

    def watched(
        self, stop: Event, tell: Callable[[str], object]
    ) -> contextlib.AbstractContextManager[object]:
        """See `Runner`."""
        return watched_executors(self._spark, stop, tell)

    def looked_at(self, storage: Storage) -> contextlib.AbstractContextManager[object]:
        """See `Runner`."""
        self._look = WorkerLook.by_spark(self._spark, storage)
        return self._look.beside(self._spark)


class _JavaHandler:
    """`sun.misc.SignalHandler`, called by the JVM."""

    def __init__(self, stop: Event) -> None:
        self._stop = stop

    def handle(self, _signal: object) -> None:
        self._stop.set()

    class Java:
        implements: Final = ["sun.misc.SignalHandler"]


@contextlib.contextmanager
def stop_on_signals(stop: Event, spark: SparkSession) -> Iterator[None]:
    """Set `stop` on SIGINT and SIGTERM, here and in the JVM, for as long as the block runs.

    For the main thread, after the session was started: Spark installs a handler of its own.
    """
    from pyspark.java_gateway import ensure_callback_server_started  # noqa: PLC0415

    context: Any = spark.sparkContext
    ensure_callback_server_started(context._gateway)  # type: ignore[no-untyped-call] # noqa: SLF001
    python = {
        number: signal.signal(number, lambda *_: stop.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    misc = context._jvm.sun.misc  # noqa: SLF001
    handlers = {"INT": misc.SignalHandler.SIG_IGN, "TERM": _JavaHandler(stop)}
    java = {name: misc.Signal.handle(misc.Signal(name), one) for name, one in handlers.items()}
    try:
        yield
    finally:
        for name, before in java.items():
            misc.Signal.handle(misc.Signal(name), before)
        for number, handler in python.items():
            signal.signal(number, handler)


# The reorder job, started from a program of one's own.


def reorder(
    kafka: KafkaSettings | str | Iterable[str],
    settings: ReorderSettings,
    *,
    on_step: StepFunction | None = None,
    stop: threading.Event | None = None,
    available_now: bool = False,
    drain: bool = False,
    reset_input: bool = False,
) -> JobReport:
    """Run the reorder job in this process, and return its report.

    ::

        settings = ReorderSettings(
            input_topics=("readings",),
            output_topic="readings.ordered",
            event_time="json:at",
            checkpoint="/data/state/readings",
        )
        report = reorder("broker-1:9092", settings, on_step=print, available_now=True)
        print(report.totals.released)

    Rows go to the output topic as with `sequitur reorder`. Your function `on_step` also gets each
    step that released rows, once they are in the topic. It may write them elsewhere. If the process
    dies or the function raises before the job has noted that it returned, the function gets the
    same rows under the same id again. So store the id with the rows.

    The Spark session is the one of this process, with the job's options set, or a new one on
    `local[2,4]`. It is left running.

    Args:
        kafka: How to reach the brokers, or only their addresses.
        settings: The job's settings.
        on_step: Called with each step, in the driver, one after the other.
        stop: Once it is set, the job ends after the current step. Without it, SIGINT and SIGTERM do
            that if the main thread makes the call.
        available_now: End when all rows that were there at the start are read.
        drain: At the end, release all held rows. Rows that come later may then be late.
        reset_input: Only when the job asks for it: read on from the end of its log, and read
            recreated topics from their beginning.

    Raises:
        StepFunctionError: `on_step` raised. The next start calls it with the same step.
        ReorderError: The job cannot continue. The message says why.
        ConservationError: A row is unaccounted for.
        ProducerError: No broker can be reached, or authentication or TLS failed.
    """
    kafka = settings_of(kafka)
    check_before_spark(kafka, settings)
    spark = build_session(f"sequitur {settings.app_name}", checkpoint=settings.checkpoint)
    start_python(spark)
    ends = stop or threading.Event()
    is_program = stop is None and threading.current_thread() is threading.main_thread()
    with stop_on_signals(ends, spark) if is_program else contextlib.nullcontext():
        return run_reorder(
            SparkRunner(spark),
            kafka,
            settings,
            stop=ends,
            available_now=available_now,
            drain=drain,
            reset_input=reset_input,
            on_done=lambda *_: None,
            on_step=on_step,
        )


# A job that spark-submit has started: from its session to its report and its exit code.


def run_submitted(
    name: str,
    kafka: KafkaSettings,
    settings: ReorderSettings,
    options: RunOptions,
    *,
    load: Callable[[], tuple[ProcessStage, Path]] | None = None,
) -> None:
    """Run the reorder job, with a topology behind it or without, until it ends or is stopped."""
    refuse_local(settings)
    command = JobCommand.begin(settings, options)
    # py4j logs every error that crosses it; those that matter reach us as exceptions.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    stop = threading.Event()
    process, file = (None, None) if load is None else load()
    check_before_spark(kafka, settings, process)
    title = name if process is None else f"process {process.topology.name}"
    spark = build_session(f"sequitur {title}", checkpoint=settings.checkpoint, leaves_ctrl_c=True)
    # What goes wrong is an error here, and is told in a line: Spark's log has hundreds for it.
    spark.sparkContext.setLogLevel(log_level())
    if file is not None:
        check_nameable(spark, str(file), "topology file")
    if file is not None and is_local(str(spark.sparkContext.master)):
        spark.sparkContext.environment[MODULES] = str(file.resolve().parent)
    start_python(spark)
    if file is not None:
        spark.sparkContext.addPyFile(str(file))
    with stop_on_signals(stop, spark):
        result = command.show(
            lambda on_done: run_reorder(
                SparkRunner(spark),
                kafka,
                settings,
                stop=stop,
                available_now=options.available_now,
                drain=options.drain,
                reset_input=options.reset_input,
                on_done=on_done,
                process=process,
            )
        )
    # All is done: a Ctrl-C from here on need not say where it came.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    spark.stop()
    command.end(result)


def refuse_local(settings: ReorderSettings) -> None:
    """Refuse a job that is to run without Spark, where spark-submit has started it."""
    if settings.runner == "local":
        raise ReorderError(
            'runner = "local" runs a job without Spark, and spark-submit runs it on Spark: start '
            "it by `sequitur reorder` or `sequitur process`, or leave the setting out"
        )


def run_job(app: typer.Typer) -> NoReturn:
    """Run a job's command line; its errors are one line each, `--debug` shows where."""
    run_program("sequitur", app, errors=(ProducerError, ConsumerError, PipelineError))
