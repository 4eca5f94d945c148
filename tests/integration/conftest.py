"""Fixtures of the tests that run programs, and of those of jobs on the local runner."""

from __future__ import annotations

import contextlib
import functools
import subprocess
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

import pytest

from sequitur.kafka.settings import KafkaSettings
from sequitur.pipelines.local.runner import LocalRunner
from sequitur.pipelines.local.workers import ProcessWorkers
from sequitur.pipelines.store.storage import storage_at
from tests.support.broker_job import BrokerJob, StorageFolder, job_on
from tests.support.daemon_process import DaemonProcess
from tests.support.s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker


class StartDaemon(Protocol):
    """Starts the daemon on the test's broker."""

    def __call__(
        self,
        *arguments: str,
        stdin: int = subprocess.DEVNULL,
        bootstrap_servers: str = "",
        environ: Mapping[str, str] | None = None,
    ) -> DaemonProcess:
        """Start it with these flags; it is killed at the test's end if it still lives then."""


@pytest.fixture
def start_daemon(broker: Broker, tmp_path: Path) -> Iterator[StartDaemon]:
    """Daemons whose journals are in the test's own folder."""
    with contextlib.ExitStack() as started:

        def start(
            *arguments: str,
            stdin: int = subprocess.DEVNULL,
            bootstrap_servers: str = "",
            environ: Mapping[str, str] | None = None,
        ) -> DaemonProcess:
            servers = bootstrap_servers or broker.bootstrap_servers
            folder = tmp_path / "state"
            daemon = DaemonProcess(servers, folder, *arguments, stdin=stdin, environ=environ)
            return started.enter_context(daemon)

        yield start


@pytest.fixture(scope="session")
def workers() -> Iterator[ProcessWorkers]:
    """The processes that the jobs of the session's tests share."""
    with contextlib.closing(ProcessWorkers(2)) as started:
        yield started


@pytest.fixture
def job(
    broker: Broker, make_topic: MakeTopic, workers: ProcessWorkers, tmp_path: Path
) -> BrokerJob:
    """A job on the local runner; the same tests run on Spark with the fixture of tests/spark."""
    settings = job_on(make_topic(partitions=4), str(tmp_path / "checkpoint"))
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    return BrokerJob(functools.partial(LocalRunner, workers), kafka, settings)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.test_all)])
def storage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> StorageFolder:
    """A folder for a checkpoint on each storage that the local runner has of its own."""
    if request.param == "local":
        folder = tmp_path / "storage" / "checkpoint"
        return StorageFolder(str(folder), folder)
    server: S3Server = request.getfixturevalue("s3_server")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    uri = f"s3a://{BUCKET}/{uuid4().hex}/checkpoint"
    return StorageFolder(uri, storage_at(uri).location(""))
