"""A Spark session for the session's tests, and reorder jobs on topics of their own."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from sequitur.pipelines.launch import class_archive_options
from sequitur.pipelines.ordering.spark_runner import SparkRunner
from sequitur.pipelines.session import build_session
from sequitur.pipelines.store.object_path import object_path
from sequitur.pipelines.store.storage import storage_at
from sequitur.producer import KafkaSettings
from tests.spark.checkpoint_places import FILE_MANAGER, sparks_part_of_s3
from tests.spark.spark_sink import PARTITIONS, Sink
from tests.spark.submitted_job import SHORT_LIVED
from tests.support.broker_job import BrokerJob, StorageFolder, job_on
from tests.support.hdfs_cluster import HdfsCluster
from tests.support.s3_server import BUCKET, S3Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker


class Job(BrokerJob):
    """A reorder job on the tests' session."""

    __slots__ = ()

    @property
    def spark(self) -> SparkSession:
        runner = self.runner()
        assert isinstance(runner, SparkRunner)
        return runner._spark


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
    settings = job_on(make_topic(partitions=4), str(tmp_path / "checkpoint"))
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    return Job(functools.partial(SparkRunner, spark), kafka, settings)


@pytest.fixture
def sink(
    spark: SparkSession, broker: Broker, make_topic: MakeTopic, tmp_path: Path
) -> Iterator[Sink]:
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    one = Sink(spark, kafka, make_topic(partitions=PARTITIONS), tmp_path / "sink")
    yield one
    one.close()
