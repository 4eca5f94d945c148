"""Jobs on a Spark cluster: a master and two workers of one core, and what happens to them there.

`make test-all` has each kind of job undisturbed, and a reorder job, keyed state and a transactional
topology with each disturbance; `make test-kill` has all kinds with each, again and again.
"""

from __future__ import annotations

import contextlib
import functools
import grp
import json
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import psutil
import pytest

from sequitur.base import ports as _ports
from sequitur.consumer.subscription.cursor_store import CursorStore
from sequitur.consumer.topology import ProcessSettings
from sequitur.kafka.partition import SourcePartition
from sequitur.producer import KafkaSettings
from tests.spark.checkpoint_places import CheckpointPlace
from tests.spark.cluster_jobs import (
    DRIVER_KILLED,
    DYNAMIC_ALLOCATION,
    EXECUTOR_KILLED,
    SPECULATION,
    ClusterJob,
    Disturbance,
    OrderedJob,
    SinkJob,
    on_cluster,
    outlive,
)
from tests.spark.daemon_rounds import DaemonRounds
from tests.spark.kill_rounds import Rounds
from tests.spark.sink_lives import PARTITIONS, SinkLives
from tests.spark.word_rounds import check_words, with_its_places
from tests.support.broker_job import BY_TASKS
from tests.support.installed import build_wheel, without_it
from tests.support.keyed_rounds import JOBS
from tests.support.postgres import PASSWORD_USER, PostgresServer
from tests.support.secured_broker import PASSWORD, SecuredBroker
from tests.support.spark_cluster import SparkCluster, read_page, small_application, words_of
from tests.support.tree import ROOT
from tests.support.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.slow, pytest.mark.one_process]

_ROUNDS: Final = int(os.environ.get("SEQUITUR_DRIVER_KILL_ROUNDS", "0"))
_LIVES: Final = max(1, _ROUNDS // 10)
"""Of each kind of job with each disturbance: there are 28 of these."""
_SEED: Final = int(os.environ.get("SEQUITUR_KILL_SEED", "7"))
_VARIABLE: Final = "COUNTS_PASSWORD"
_PASSWORD: Final = "known-to-the-workers"
_PROCESS: Final = ProcessSettings.model_validate({"max_attempts": 3, "retry_delay": "20 ms"})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """The cluster of this module's tests; its workers know the password of the database."""
    told = {_VARIABLE: _PASSWORD}
    with SparkCluster(tmp_path_factory.mktemp("cluster"), environment=told) as one:
        yield one


@dataclass(frozen=True, slots=True)
class Kinds:
    """Makes jobs of each kind, before topics and in a folder of one test.

    Attributes:
        kafka: Reaches the broker.
        make_topic: Makes a topic there.
        folder: The test's.
        master: Spark's master.
        database: Makes a database.
        set_variable: Sets a variable of the environment.
        ways: How batches are staged: by default as users have it.
    """

    kafka: KafkaSettings
    make_topic: Callable[[int], str]
    folder: Path
    master: str
    database: Callable[[], str]
    set_variable: Callable[[str, str], None]
    ways: Sequence[Mapping[str, int]] = ({},)

    def by_tasks(self) -> Kinds:
        """What happens to tasks shows nothing where the driver does all by itself."""
        return replace(self, ways=(BY_TASKS,))

    def reorder(self) -> ClusterJob:
        rounds = self._rounds()
        return OrderedJob(rounds, rounds.check)

    def reorder_by_command(self) -> ClusterJob:
        rounds = self._rounds(by_command=True)
        return OrderedJob(rounds, rounds.check)

    def topology(self) -> ClusterJob:
        """A topology whose bolts fail now and then."""
        file = Path(__file__).with_name("failing_topology.py")
        rounds = self._rounds(topology=file, process=_PROCESS)
        dead = _PROCESS.dead_letters(rounds.settings.output_topic)
        return OrderedJob(rounds, lambda report: rounds.check(report, (dead,)))

    def keyed(self) -> ClusterJob:
        """State and timers by the events' key, and by another field in a stage of its own."""
        keyed = JOBS["groups"]
        topics = [self.make_topic(1) for _ in keyed.topics]
        for name, topic in zip(keyed.topics, topics, strict=True):
            self.set_variable(name, topic)
        rounds = self._rounds(**keyed.job)
        return OrderedJob(
            rounds, lambda report: keyed.check_all(rounds, report, topics), drains=False
        )

    def transactions(self) -> ClusterJob:
        """Likewise, with its counts in PostgreSQL; by `sequitur process`."""
        url, words, buckets = self.database(), self.make_topic(4), self.make_topic(4)
        file = with_its_places(
            self.folder,
            password_env=_VARIABLE if PASSWORD_USER in url else None,
            STATE_URL=url,
            WORD_TOPIC=words,
            BUCKET_TOPIC=buckets,
        )
        rounds = self._rounds(topology=file, process=_PROCESS, by_command=True)
        return OrderedJob(
            rounds,
            lambda report: check_words(rounds, report, url=url, words=words, buckets=buckets),
        )

    def subscribed(self) -> ClusterJob:
        """A reorder job with a subscription, whose cursors are where all is out."""
        rounds = self._rounds()
        rounds.settings = rounds.settings.model_copy(update={"subscription": "on-a-cluster"})

        def judge(report: dict[str, Any]) -> None:
            rounds.check(report)
            stored = CursorStore(rounds.kafka).read("on-a-cluster")
            assert stored is not None
            topic = rounds.settings.input_topics[0]
            cursors = [stored.cursors[SourcePartition(topic, one)].cursor for one in range(4)]
            assert sum(one.committed_offset for one in cursors) == rounds.sent

        return OrderedJob(rounds, judge)

    def sink(self) -> ClusterJob:
        topic = self.make_topic(PARTITIONS)
        return SinkJob(SinkLives(self.kafka, topic, self.folder, Random(_SEED)), self.master)

    def _rounds(self, **job: Any) -> Rounds:
        rounds = Rounds.on(
            self.kafka.bootstrap_servers,
            self.make_topic(4),
            CheckpointPlace.on_path(self.folder / "checkpoint"),
            Random(_SEED),
            job={"master": self.master, **job},
        )
        return replace(rounds, kafka=self.kafka, ways=self.ways)


_KINDS: Final[tuple[Callable[[Kinds], ClusterJob], ...]] = (
    Kinds.reorder,
    Kinds.reorder_by_command,
    Kinds.topology,
    Kinds.keyed,
    Kinds.transactions,
    Kinds.sink,
    Kinds.subscribed,
)
_SHOWN: Final = (
    *("environment", "allexecutors", "jobs", "storage/rdd", "stages?details=true"),
    "sql?details=true&planDescription=true",
)
"""What of /api/v1 says most; Spark's pages are made of it."""
_EACH: Final = (
    (EXECUTOR_KILLED, SPECULATION, DRIVER_KILLED),
    (DYNAMIC_ALLOCATION,),
)


@pytest.fixture
def kinds(
    broker: Broker,
    make_topic: MakeTopic,
    tmp_path: Path,
    cluster: SparkCluster,
    request: pytest.FixtureRequest,
) -> Kinds:
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    # Only one kind has a database.
    database = functools.partial(request.getfixturevalue, "database")
    set_variable = request.getfixturevalue("monkeypatch").setenv
    return Kinds(kafka, make_topic, tmp_path, cluster.url, database, set_variable)


@pytest.mark.promise("order-spark-cluster-executor")
@pytest.mark.parametrize("kind", [one for one in _KINDS if one is not Kinds.transactions])
def test_job_runs_on_the_cluster(
    kinds: Kinds, cluster: SparkCluster, tmp_path: Path, kind: Callable[[Kinds], ClusterJob]
) -> None:
    """Its application has the cores of both workers, and each event is out once and in order.

    The driver may do all of it: tasks on both have a look at the start.
    """
    job = kind(kinds)
    job.feed()
    with on_cluster(job, cluster, tmp_path, is_bounded=False) as life:
        assert all(Path(one.cwd()) != Path.cwd() for one in life.executors())
        life.wait(lambda: {*life.events().tasks()} == {*life.events().executors} == {"0", "1"})
        job.end(life.process)
    job.check()
    assert life.events().masters == {cluster.url}


@pytest.mark.promise("order-spark-page-spark")
def test_passwords_are_nowhere_to_be_seen(
    kinds: Kinds,
    cluster: SparkCluster,
    tmp_path: Path,
    make_postgres: Callable[[], PostgresServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A transactional topology runs undisturbed; neither Spark nor `ps` shows what it logs in with.

    Spark's page and its event log are on, and both Kafka and the database ask for a password.
    """
    server = make_postgres()
    server.sql(f"CREATE ROLE {PASSWORD_USER} LOGIN PASSWORD '{_PASSWORD}'")
    server.sql(f"CREATE DATABASE counts OWNER {PASSWORD_USER}")
    monkeypatch.setenv(_VARIABLE, _PASSWORD)
    page = _ports.choose_free()
    with SecuredBroker(tmp_path / "secured") as broker:

        def make_topic(partitions: int) -> str:
            broker.make_topic(name := f"topic-{uuid4().hex}", partitions)
            return name

        job = replace(
            kinds,
            kafka=broker.kafka("SASL_PLAINTEXT", "PLAIN"),
            make_topic=make_topic,
            database=lambda: server.url("counts", PASSWORD_USER),
        ).transactions()
        assert isinstance(job, OrderedJob)
        job.feed()
        options = {"spark.ui.enabled": "true", "spark.ui.port": str(page)}
        with on_cluster(job, cluster, tmp_path, is_bounded=False, options=options) as life:
            life.wait(job.done)
            address = f"http://{_ports.HOST}:{page}/api/v1/applications/{life.number}"
            said = [read_page(f"{address}/{name}") for name in _SHOWN]
            said += [" ".join(words_of(one)) for one in psutil.process_iter()]
            job.end(life.process)
        monkeypatch.setenv("PGPASSWORD", _PASSWORD)
        job.check()
    events = "\n".join(json.dumps(one) for one in life.events().events)
    assert PASSWORD.startswith("tell-nobody")
    assert cluster.url in said[0]
    assert cluster.url in events
    shown = [*said, events]
    assert [secret for secret in (_PASSWORD, "tell-nobody") for one in shown if secret in one] == []


@pytest.mark.promise("order-spark-cluster-executor")
@pytest.mark.kill
@pytest.mark.timeout(1800)  # two lives of a job on a cluster
@pytest.mark.parametrize("kind", [Kinds.reorder, Kinds.keyed, Kinds.transactions])
def test_disturbed_job_loses_doubles_and_disorders_nothing(
    kinds: Kinds, cluster: SparkCluster, tmp_path: Path, kind: Callable[[Kinds], ClusterJob]
) -> None:
    """An executor is killed, a task copied, the driver killed, and executors leave and come."""
    outlive(kind(kinds.by_tasks()), cluster, tmp_path, *_EACH)


@pytest.mark.promise("order-spark-cluster-executor")
@pytest.mark.kill
@pytest.mark.timeout(600 + 240 * _LIVES)
@pytest.mark.skipif(not _ROUNDS, reason="28 lives of Spark; make test-kill runs them")
@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize(
    "disturbance",
    [EXECUTOR_KILLED, DRIVER_KILLED, SPECULATION, DYNAMIC_ALLOCATION],
    ids=["executor-killed", "driver-killed", "speculation", "dynamic-allocation"],
)
def test_each_disturbance_of_each_job_loses_doubles_and_disorders_nothing(
    kinds: Kinds,
    cluster: SparkCluster,
    tmp_path: Path,
    kind: Callable[[Kinds], ClusterJob],
    disturbance: Disturbance,
) -> None:
    lives = [(disturbance,)] * _LIVES
    # One that kills the driver is not the last.
    job = kind(kinds.by_tasks())
    outlive(job, cluster, tmp_path, *lives, *[()] * (disturbance is DRIVER_KILLED))


@pytest.mark.promise("order-spark-cluster-executor")
@pytest.mark.kill
@pytest.mark.timeout(600 + 90 * _ROUNDS)
@pytest.mark.skipif(not _ROUNDS, reason="many lives of Spark; make test-kill runs them")
def test_killed_daemon_before_a_killed_driver_loses_doubles_and_disorders_nothing(
    broker: Broker, make_topic: MakeTopic, cluster: SparkCluster, tmp_path: Path
) -> None:
    """From a file by `produce-events` through the job on the cluster, both killed by `kill -9`."""
    place = CheckpointPlace.on_path(tmp_path / "checkpoint")
    rounds = DaemonRounds.on(
        broker.bootstrap_servers,
        make_topic(4),
        replace(place, options={**place.options, **small_application()}),
        Random(_SEED),
        job={"master": cluster.url},
    )
    rounds.folder = tmp_path
    before = cluster.applications()
    with contextlib.closing(rounds):
        report = rounds.outlive(_ROUNDS)
    released, late, quarantined = rounds.check(report)
    assert released
    assert late
    assert quarantined
    assert rounds.kills >= _ROUNDS
    # A life that is killed while it starts may not have come so far.
    assert len(cluster.applications() - before) > _ROUNDS // 2


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return without_it(tmp_path_factory.mktemp("bare") / "environment") / "bin" / "python"


@pytest.mark.promise("order-workers-cluster-lack")
def test_wheel_by_another_name_is_shipped_to_workers(
    kinds: Kinds, cluster: SparkCluster, tmp_path: Path, bare_python: Path
) -> None:
    """By --py-files, as a .zip: PySpark puts no .whl on the path of tasks."""
    shipped = build_wheel(tmp_path).rename(tmp_path / "sequitur.zip")
    job = kinds.by_tasks().reorder()
    job.feed()
    options = {"spark.pyspark.python": str(bare_python), "spark.submit.pyFiles": str(shipped)}
    with on_cluster(job, cluster, tmp_path, options=options) as life:
        job.end(life.process)
    job.check()
    assert {*life.events().tasks()} == {"0", "1"}


@pytest.mark.promise("order-workers-cluster-lack", "order-cluster-workers-unfit")
@pytest.mark.parametrize("events", [True, False], ids=["with events", "without events"])
def test_workers_without_the_package_are_told_of_in_one_sentence(
    kinds: Kinds, cluster: SparkCluster, tmp_path: Path, bare_python: Path, *, events: bool
) -> None:
    """What is to be done about it is in it; no traceback of a task is shown.

    Whether or not there is anything to read, and though the driver needs no task for that.
    """
    job = kinds.reorder_by_command()
    if events:
        job.feed()
    options = {"spark.pyspark.python": str(bare_python)}
    with on_cluster(job, cluster, tmp_path, is_bounded=False, options=options) as life:
        assert life.process.wait() == 3
        said = job.said()
    # What Java says at each start, and that executors took more than 10 s on a slow machine.
    others = ("WARNING: Using incubator", "no executor yet", "executors are there")
    wanted = (
        "sequitur: Spark gave up: Python on the workers has no package 'sequitur': install there "
        "what the driver has, in the same versions, or ship it by --py-files or spark.archives "
        "(docs/deploy.md)"
    )
    assert [one for one in said.splitlines() if not one.startswith(others)] == [wanted]


@pytest.fixture
def two_users() -> Iterator[Path]:
    """A folder that two users reach; pytest's own is for one user alone."""
    if os.geteuid() != 0:
        pytest.skip("only root can start workers as another user")
    folder = Path(tempfile.mkdtemp(prefix="sequitur-two-users-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def python_of_nobody(two_users: Path) -> Path:
    """A Python like ours that the other user can run."""
    for base in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        python = two_users / "python"
        path = f"{sysconfig.get_path('purelib')}:{ROOT}"
        python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{path}" exec {base} "$@"\n')
        python.chmod(0o755)
        imports = [str(python), "-c", "import sequitur.pipelines.topology.batch"]
        if subprocess.run(imports, user="nobody", cwd="/", check=False).returncode == 0:
            return python
    pytest.skip("the user 'nobody' can run no Python of this version with these packages")


@pytest.mark.promise("order-workers-cluster-run", "order-cluster-workers-unfit")
@pytest.mark.parametrize("is_shared", [False, True])
def test_workers_of_another_user_need_a_folder_of_a_common_group(
    kinds: Kinds, two_users: Path, python_of_nobody: Path, tmp_path: Path, is_shared: bool
) -> None:
    """In one that is setgid both write, and nobody else; in another the job is refused by name."""
    group = grp.getgrnam("nogroup").gr_gid
    (work := two_users / "work").mkdir()
    shutil.chown(work, "nobody", group)
    if is_shared:
        (checkpoint := two_users / "checkpoint").mkdir()
        shutil.chown(checkpoint, group=group)
        checkpoint.chmod(0o2770)
    with SparkCluster(work, user="nobody", group=group, extra_groups=[]) as cluster:
        kinds = replace(kinds, folder=two_users, master=cluster.url)
        # Of the one that is refused the driver does all by itself.
        job = kinds.by_tasks().topology() if is_shared else kinds.reorder()
        job.feed()
        options = {"spark.pyspark.python": str(python_of_nobody)}
        with on_cluster(job, cluster, tmp_path, is_bounded=is_shared, options=options) as life:
            assert {one.username() for one in life.executors()} == {"nobody"}
            if not is_shared:
                assert life.process.wait() == 3
                said = job.said()
                assert "belongs to the user 'root', and this process, a task of the job, " in said
                assert "is the user 'nobody': " in said
                return
            job.end(life.process)
    job.check()
    found = [path for path in (two_users / "checkpoint").rglob("*") if "spark" not in path.parts]
    users = {path.owner() for path in found if path.is_file()}
    assert users == {"root", "nobody"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_file()} == {0o660}
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_dir()} == {0o2770}
