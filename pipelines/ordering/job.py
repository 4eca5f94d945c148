"""A stop by signal: the running batch ends, Spark commits it, and the job ends with status 0.

Under spark-submit the JVM is our parent. Left alone it would shut Spark down under the running
batch, so it is told otherwise for the two signals:

- SIGTERM comes to one process, and often to the JVM alone: a handler passes it on to us.
- Ctrl-C reaches the whole group, us too, so the JVM ignores SIGINT. It must not even handle it:
  Hadoop runs `chmod` for each local file it creates, and a child process takes over what is ignored
  but not what is handled, so Ctrl-C would end that `chmod`, and with it the batch.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO

import typer
from rich.console import Console

from sequitur.base.program import (
    NOTHING_USABLE_EXIT_CODE,
    complain,
    run_program,
    take_stdout,
)
from sequitur.base.retry import Outages
from sequitur.base.settings import parse_address
from sequitur.consumer.lateness import FOLD_LIMITS
from sequitur.errors import (
    BrokerError,
    CheckpointError,
    ConsumerError,
    FatalError,
    PipelineError,
    ProducerError,
    ReorderError,
    TopicError,
)
from sequitur.kafka.admin import KafkaTopics
from sequitur.kafka.connections import require_broker
from sequitur.kafka.settings import settings_of
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.ordering.context import JobContext
from sequitur.pipelines.ordering.job_subscription import checks_of, require_name, subscribe
from sequitur.pipelines.ordering.opening import ProcessStage, open_engine
from sequitur.pipelines.ordering.progress import (
    LiveLine,
    ProgressStyle,
    TextLines,
    print_step,
    report_table,
    serve_metrics,
)
from sequitur.pipelines.ordering.query import RestartingQuery
from sequitur.pipelines.ordering.spark_source import SparkSource
from sequitur.pipelines.ordering.worker_look import WorkerLook
from sequitur.pipelines.python_path import MODULES
from sequitur.pipelines.session import build_session, log_level
from sequitur.pipelines.sink.sink import TopicSink
from sequitur.pipelines.spark.tasks import SparkWorkers, start_python, watched_executors
from sequitur.pipelines.spark_settings import is_local
from sequitur.pipelines.store.checkpoint import Checkpoint
from sequitur.pipelines.store.documents import check_epoch, folder_of_epoch
from sequitur.pipelines.store.hadoop_folder import check_nameable, open_spark_folder, open_storage
from sequitur.pipelines.store.ownership import refuse_if_owned
from sequitur.pipelines.store.storage import LocalStorage, local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from threading import Event

    from pyspark.sql import SparkSession

    from sequitur.consumer import ReorderSettings
    from sequitur.consumer.lateness import FoldLimits
    from sequitur.consumer.step_log import StepDone, StepEntry
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.ordering.progress import JobReport
    from sequitur.pipelines.ordering.step import StepFunction
    from sequitur.pipelines.run_options import RunOptions


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


# What can be refused is refused before Spark starts, which takes ten seconds.
#
# Most of this is looked at again by the job itself, which cannot rely on what was true a moment
# ago.


_SAME_IN_JAVA: Final = re.compile(r"(?:[A-Za-z0-9_.*+?|()-]|\\\.)+")
"""Patterns of these mean the same to Python and Java; others are left to the job."""


def check_before_start(
    kafka: KafkaSettings, settings: ReorderSettings, process: ProcessStage | None = None
) -> None:
    """Look at all that a job needs and that can be looked at without Spark."""
    written, aside = list(settings.written_topics), [settings.late, settings.quarantine]
    if process is not None:
        from sequitur.pipelines.topology.topology_file import check_settings  # noqa: PLC0415 - loads all of Spark

        check_settings(settings, process.settings, process.topology)
        written += process.topology.topics(settings.output_topic)
        aside.append(process.settings.dead_letters(settings.output_topic))
        written.append(aside[-1])
    if (checkpoint := local_path(settings.checkpoint)) is not None:
        _check_writable(checkpoint)
        refuse_if_owned(LocalStorage(checkpoint), watches=False)
    if settings.metrics is not None:
        _check_free(settings.metrics)
    require_broker(kafka)
    topics = KafkaTopics(kafka)
    _check_topics(topics, settings, written)
    for topic in aside:
        if topics.partitions(topic) is not None:
            topics.require_keyless(topic)


def _check_writable(checkpoint: Path) -> None:
    """Check that a folder can be written to, or made, by doing it; what was made is removed."""
    there = next(path for path in (checkpoint, *checkpoint.parents) if os.path.lexists(path))
    if not there.is_dir():
        raise CheckpointError(f"checkpoint {checkpoint}: {there} is not a folder")
    made: list[Path] = []
    try:
        for path in reversed((checkpoint, *checkpoint.parents)):
            if not os.path.lexists(path):
                path.mkdir()
                made.insert(0, path)
        with tempfile.TemporaryFile(dir=checkpoint, buffering=0) as file:
            file.write(b"x")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(
            f"checkpoint {str(checkpoint)!r} cannot be written: {reason} (in {there})"
        ) from error
    finally:
        for path in made:
            with contextlib.suppress(OSError):  # somebody has put something into it
                path.rmdir()


def _check_free(address: str) -> None:
    """Check that metrics can be served at an address."""
    host, port = parse_address(address)
    try:
        family, kind, protocol, _name, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
    except OSError as error:
        raise ReorderError(f"metrics: cannot listen on {address}: {error.strerror}") from error


def _check_topics(topics: KafkaTopics, settings: ReorderSettings, written: Sequence[str]) -> None:
    for topic in settings.input_topics:
        topics.require(topic)
    pattern = settings.input_pattern
    if pattern is not None and _SAME_IN_JAVA.fullmatch(pattern) is not None:
        try:
            matching = re.compile(pattern)
        except re.error as error:
            raise TopicError(f"input_pattern {pattern!r}: {error}") from error
        topics.matching(pattern, lambda topic: matching.fullmatch(topic) is not None, written)
    if (wanted := settings.output_partitions) is not None:
        topic = settings.output_topic
        topics.check_partitions(topic, topics.partitions(topic), wanted)


# The reorder job: a streaming query, ticks beside it, and an orderly end.


def run_reorder(
    spark: SparkSession,
    kafka: KafkaSettings,
    settings: ReorderSettings,
    *,
    stop: Event,
    available_now: bool = False,
    drain: bool = False,
    on_done: Callable[[StepEntry, StepDone], None] = print_step,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    process: ProcessStage | None = None,
    reset_input: bool = False,
    fold_limits: FoldLimits = FOLD_LIMITS,
    on_step: StepFunction | None = None,
) -> JobReport:
    """Run the job until it is asked to stop, or has read what there is."""
    begun = time.monotonic()
    _check_login(kafka)
    outages = Outages(settings.patience.total_seconds(), settings.restarts, wait=stop.wait)
    topics = KafkaTopics(kafka, outages)
    with contextlib.ExitStack() as opened:
        measure = opened.enter_context(serve_metrics(settings.metrics, outages))
        subscription = subscribe(kafka, settings, topics, outages, opened)
        if subscription is not None:
            measure.show_cursors(subscription.copies)
        epoch = 0 if subscription is None else subscription.state.epoch
        root = open_storage(spark, settings.checkpoint)
        folder = folder_of_epoch(settings.checkpoint, epoch)
        storage = root if folder == settings.checkpoint else open_storage(spark, folder)
        checkpoint = Checkpoint(storage, open_spark_folder(spark, storage))
        check_epoch(root, epoch, settings.subscription)
        opened.enter_context(contextlib.closing(checkpoint))
        opened.enter_context(checkpoint.while_owned())

        def tell(entry: StepEntry, done: StepDone) -> None:
            outages.step_is_done()
            measure(entry, done)
            on_done(entry, done)

        workers = SparkWorkers(spark)
        look = WorkerLook.by_spark(spark, storage)
        job = JobContext(
            kafka=kafka,
            settings=settings,
            topics=topics,
            checkpoint=checkpoint,
            outages=outages,
            now_ms=now_ms,
            on_done=tell,
            is_bounded=available_now,
            fold_limits=fold_limits,
            on_step=on_step,
            subscription=subscription,
            unfit=lambda: look.failure,
            source=SparkSource(spark, kafka, settings, topics, outages),
            workers=workers,
            sink=TopicSink(workers, kafka, settings, checkpoint, outages),
        )
        require_name(job)
        engine = open_engine(job, process, ends=available_now and drain)
        read_before = engine.totals.read
        with (
            contextlib.suppress(StopRequestedError),
            watched_executors(spark, stop, outages.tell),
            contextlib.closing(engine),
            look.beside(spark),
        ):
            engine.recover()
            if subscription is not None:
                if not engine.input.has_log:
                    engine.input.begin_at_cursors(subscription)
                opened.enter_context(checks_of(job, subscription))
            if not reset_input:
                engine.input.check()
            if not reset_input or engine.input.reset(stop.wait):
                RestartingQuery(spark, job, engine, stop).run()
                if available_now:
                    engine.release_behind_cuts()
                if drain:
                    engine.drain()
                if available_now or drain:
                    engine.process_pending(stop.wait)
                engine.tidy()
    return engine.report(read_before, time.monotonic() - begun)


def _check_login(kafka: KafkaSettings) -> None:
    """Check that no broker rejects the connection: to wait would not help; for silence it may."""
    try:
        require_broker(kafka)
    except FatalError as error:
        raise TopicError(f"the brokers refuse the job: {error}") from error
    except BrokerError:
        return  # told, and waited for, when the first question has no answer


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
    check_before_start(kafka, settings)
    spark = build_session(f"sequitur {settings.app_name}", checkpoint=settings.checkpoint)
    start_python(spark)
    ends = stop or threading.Event()
    is_program = stop is None and threading.current_thread() is threading.main_thread()
    with stop_on_signals(ends, spark) if is_program else contextlib.nullcontext():
        return run_reorder(
            spark,
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
    style = options.progress.on(is_terminal=sys.stdout.isatty())
    # What bolts and their modules print is none of a program's that reads the steps.
    output = take_stdout() if style is ProgressStyle.JSON else sys.stdout
    # py4j logs every error that crosses it; those that matter reach us as exceptions.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    for warning in settings.warnings:
        complain(f"warning: {warning}")
    stop = threading.Event()
    process, file = (None, None) if load is None else load()
    check_before_start(kafka, settings, process)
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
        with _shown(style, output) as (on_done, on_end):
            result = run_reorder(
                spark,
                kafka,
                settings,
                stop=stop,
                available_now=options.available_now,
                drain=options.drain,
                reset_input=options.reset_input,
                on_done=on_done,
                process=process,
            )
        on_end(result)
        if options.report is not None:
            options.report.parent.mkdir(parents=True, exist_ok=True)
            options.report.write_text(json.dumps(result.as_json()) + "\n")
    # All is done: a Ctrl-C from here on need not say where it came.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    spark.stop()
    if options.available_now and result.all_quarantined:
        complain(str(result.all_quarantined))
        raise typer.Exit(NOTHING_USABLE_EXIT_CODE)


def run_job(app: typer.Typer) -> NoReturn:
    """Run a job's command line; its errors are one line each, `--debug` shows where."""
    run_program("sequitur", app, errors=(ProducerError, ConsumerError, PipelineError))


@contextlib.contextmanager
def _shown(
    style: ProgressStyle, output: TextIO
) -> Iterator[tuple[Callable[[StepEntry, StepDone], None], Callable[[JobReport], None]]]:
    """Return what shows each step, and what shows the end."""
    if style is ProgressStyle.JSON:
        yield (
            functools.partial(print_step, output=output),
            lambda result: typer.echo(json.dumps(result.as_json()), output),
        )
        return
    # spark-submit stands between us and the terminal, so rich would not find one.
    console = Console(force_terminal=True) if style is ProgressStyle.LIVE else Console()
    line = LiveLine(console) if style is ProgressStyle.LIVE else TextLines(console)
    with line:
        yield line, lambda result: console.print(report_table(result.as_json()))
