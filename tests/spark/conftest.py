"""A Spark session for the session's tests, and reorder jobs on topics of their own."""

from __future__ import annotations

import concurrent.futures
import contextlib
import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from sequitur.consumer import ReorderSettings
from sequitur.consumer.lateness import FOLD_LIMITS, FoldLimits
from sequitur.consumer.topology import ProcessSettings
from sequitur.pipelines.launch import class_archive_options
from sequitur.pipelines.ordering.job import SparkRunner
from sequitur.pipelines.ordering.opening import ProcessStage
from sequitur.pipelines.ordering.run import run_reorder
from sequitur.pipelines.session import build_session
from sequitur.pipelines.store.remote_path import object_path
from sequitur.pipelines.store.storage import storage_at
from sequitur.producer import KafkaSettings
from tests.spark.checkpoint_places import FILE_MANAGER, sparks_part_of_s3
from tests.spark.kill_rounds import BY_DRIVER, BY_TASKS
from tests.spark.spark_sink import PARTITIONS, Sink
from tests.spark.submitted_job import SHORT_LIVED
from tests.support.events import send
from tests.support.hdfs_cluster import HdfsCluster
from tests.support.output_reading import read_output
from tests.support.s3_server import BUCKET, S3Server
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sequitur.cli.topic_reader import TopicRecord
    from sequitur.consumer.step_log import StepDone, StepEntry, StepKind
    from sequitur.consumer.topology import Topology
    from sequitur.pipelines.ordering.progress import JobReport
    from sequitur.pipelines.ordering.run import Runner
    from sequitur.pipelines.ordering.step import StepFunction
    from sequitur.pipelines.store.storage import Location
    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker
    from tests.support.events import Event

_END_TIMEOUT_S = 5 * PATIENCE_S

BOTH_WAYS: Final = pytest.mark.parametrize(
    "way",
    [
        pytest.param(BY_DRIVER, id="by the driver"),
        pytest.param(BY_TASKS, id="by tasks", marks=pytest.mark.test_all),
    ],
)
"""Of a test whose few rows the driver stages, and which is also of what tasks meet."""


@dataclass(slots=True)
class Job:
    """A reorder job on topics of its own; each `run` is one life of it."""

    spark: SparkSession
    kafka: KafkaSettings
    settings: ReorderSettings
    process: ProcessStage | None = None
    steps: list[tuple[StepEntry, StepDone]] = field(default_factory=list)
    report: JobReport | None = None
    fold_limits: FoldLimits = FOLD_LIMITS
    on_step: StepFunction | None = None

    @property
    def topic(self) -> str:
        return self.settings.input_topics[0]

    def produce(self, events: Iterable[Event], *, topic: str | None = None) -> None:
        """Send events, each partition in order, and wait until they are there."""
        send(self.kafka, topic or self.topic, events)

    def run(
        self,
        *,
        drain: bool = False,
        available_now: bool = True,
        stop: threading.Event | None = None,
        reset_input: bool = False,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        runner: Runner | None = None,
    ) -> JobReport:
        self.report = run_reorder(
            runner or SparkRunner(self.spark),
            self.kafka,
            self.settings,
            stop=stop or threading.Event(),
            available_now=available_now,
            drain=drain,
            on_done=lambda entry, done: self.steps.append((entry, done)),
            now_ms=now_ms,
            process=self.process,
            reset_input=reset_input,
            fold_limits=self.fold_limits,
            on_step=self.on_step,
        )
        return self.report

    @contextlib.contextmanager
    def running(self) -> Iterator[concurrent.futures.Future[JobReport]]:
        """The job on whatever comes, until the block ends; an error of it fails the test."""
        stop = threading.Event()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            life = pool.submit(self.run, available_now=False, stop=stop)
            try:
                yield life
            finally:
                stop.set()
            life.result(_END_TIMEOUT_S)

    def with_settings(self, **changes: Any) -> Job:
        settings = ReorderSettings.model_validate({**self.settings.model_dump(), **changes})
        return Job(self.spark, self.kafka, settings, self.process, fold_limits=self.fold_limits)

    def running_topology(self, topology: Topology, **process: Any) -> Job:
        settings = ProcessSettings.model_validate(process)
        return Job(self.spark, self.kafka, self.settings, ProcessStage(topology, settings))

    def processed(self) -> dict[str, int]:
        assert self.report is not None
        assert self.report.processed is not None
        return dict(self.report.processed)

    def dead_letters(self) -> list[TopicRecord]:
        assert self.process is not None
        topic = self.process.settings.dead_letters(self.settings.output_topic)
        return read_output(self.kafka, topic)

    def kinds(self) -> list[StepKind]:
        return [entry.kind for entry, _ in self.steps]

    def released(self) -> list[TopicRecord]:
        return read_output(self.kafka, self.settings.output_topic)

    def late(self) -> list[TopicRecord]:
        return read_output(self.kafka, self.settings.late)

    def quarantined(self) -> list[TopicRecord]:
        return read_output(self.kafka, self.settings.quarantine)


_HADOOP_ONLY: Final = "viewfs://tests/state"
_MOUNT: Final = "fs.viewfs.mounttable.tests.link./state"


class SharedSession:
    """One session for all tests: starting one costs more than any test.

    Args:
        state: The folder behind `HadoopFolder`.
    """

    def __init__(self, state: Path) -> None:
        self._state = state
        self._session: SparkSession | None = None

    def get(self) -> SparkSession:
        """The session; a new one, in a new JVM, where a test left a broken one.

        A test that its timeout ends within a call of the JVM leaves that call's answer on the
        connection, and each later call would be given the answer of the one before it.
        """
        if self._session is not None and not _answers(self._session):
            _end_jvm()
            self._session = None
        if self._session is None:
            self._session = build_session(
                # The master that users get: a task is tried four times.
                "tests",
                options={
                    # Short jobs of ever new plans: the second compiler would take the machine.
                    # And no collector runs beside the tasks, which two cores have no room for.
                    "spark.driver.extraJavaOptions": " ".join(
                        [SHORT_LIVED, *class_archive_options()]
                    ),
                    "spark.driver.memory": "1g",
                    # A query that waits asks Kafka for news a hundred times a second otherwise.
                    "spark.sql.streaming.pollingDelay": "50ms",
                    f"spark.hadoop.{_MOUNT}": self._state.as_uri(),
                    **sparks_part_of_s3(self._state),
                },
            )
        return self._session

    def stop(self) -> None:
        if self._session is None:
            return
        if _answers(self._session):
            self._session.stop()
        else:
            _end_jvm()


def _answers(session: SparkSession) -> bool:
    number = random.getrandbits(30)
    jvm: Any = session.sparkContext._jvm
    try:
        echo = jvm.java.lang.Integer.toString(number)
        return bool(echo == str(number)) and not session.sparkContext._jsc.sc().isStopped()
    except Exception:  # noqa: BLE001 - whatever a wrong answer is taken for
        return False


def _end_jvm() -> None:
    """End the JVM and forget it: the session cannot be stopped over a broken connection."""
    gateway: Any = SparkContext._gateway
    context = SparkContext._active_spark_context
    if context is not None and context._accumulatorServer is not None:
        context._accumulatorServer.shutdown()
    gateway.proc.kill()
    gateway.proc.wait()
    gateway.proc.stdin.close()
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


@pytest.fixture(scope="session")
def shared_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedSession]:
    shared = SharedSession(tmp_path_factory.mktemp("hadoop-only"))
    yield shared
    shared.stop()


@pytest.fixture
def spark(shared_session: SharedSession) -> SparkSession:
    return shared_session.get()


class HadoopFolder(NamedTuple):
    """A folder on a file system that Spark reaches and programs do not, and what is behind it."""

    uri: str
    path: Path


@pytest.fixture
def hadoop_only(spark: SparkSession) -> HadoopFolder:
    name = uuid4().hex
    state = spark.conf.get(f"spark.hadoop.{_MOUNT}")
    return HadoopFolder(f"{_HADOOP_ONLY}/{name}", Path(urlsplit(state or "").path, name))


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture
def s3_folder(spark: SparkSession, s3_server: S3Server) -> Iterator[str]:
    for name, said in {**s3_server.settings(), **FILE_MANAGER}.items():
        spark.conf.set(name, said)
    yield f"s3a://{BUCKET}/{uuid4().hex}"
    for name in FILE_MANAGER:
        spark.conf.unset(name)
    s3_server.fault()


class StorageFolder(NamedTuple):
    """A folder where a checkpoint can stand, and where its files can be looked at."""

    uri: str
    location: Location


@pytest.fixture(scope="session")
def hdfs() -> Iterator[HdfsCluster]:
    """The HDFS cluster that the session's tests share."""
    with HdfsCluster() as cluster:
        yield cluster


@pytest.fixture
def hdfs_folder(hdfs: HdfsCluster) -> Iterator[str]:
    yield f"{hdfs.uri}/{uuid4().hex}"
    hdfs.fault()


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.test_all)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> StorageFolder:
    """Such a folder of each kind of storage; one in HDFS where a test asks for it."""
    if request.param == "local":
        folder = tmp_path / "storage" / "checkpoint"
        return StorageFolder(str(folder), folder)
    if request.param == "hdfs":
        uri = f"{request.getfixturevalue('hdfs_folder')}/checkpoint"
        return StorageFolder(uri, storage_at(uri).location(""))
    uri = f"{request.getfixturevalue('s3_folder')}/checkpoint"
    found = object_path(uri, request.getfixturevalue("s3_server").settings().get)
    assert found is not None
    return StorageFolder(uri, found)


@pytest.fixture
def job(spark: SparkSession, broker: Broker, make_topic: MakeTopic, tmp_path: Path) -> Job:
    topic = make_topic(partitions=4)
    settings = ReorderSettings.model_validate(
        {
            "input_topics": [topic],
            "output_topic": f"{topic}.ordered",
            "event_time": "json:at",
            "delay": "1 s",
            "idle_timeout": "1 min",
            "checkpoint": str(tmp_path / "checkpoint"),
        }
    )
    return Job(spark, KafkaSettings(bootstrap_servers=broker.bootstrap_servers), settings)


@pytest.fixture
def sink(
    spark: SparkSession, broker: Broker, make_topic: MakeTopic, tmp_path: Path
) -> Iterator[Sink]:
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    one = Sink(spark, kafka, make_topic(partitions=PARTITIONS), tmp_path / "sink")
    yield one
    one.close()
