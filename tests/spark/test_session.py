"""The session has what the user has told Spark; that of tests outlives one that was ended."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import pytest
from py4j.finalizer import ThreadSafeFinalizer
from pyspark import SparkContext

from sequitur.pipelines.jars import locked_jars
from sequitur.pipelines.launch import (
    DEFAULT_MASTER,
    WAITING_MASTER,
    chosen_master,
    spark_submit_command,
    spark_submit_environment,
)
from sequitur.pipelines.ordering.engine import ReorderEngine
from sequitur.pipelines.spark_settings import SWITCHES, spark_home
from sequitur.spark import reorder
from tests.support.events import event
from tests.support.tree import ROOT
from tests.support.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import Job, SharedSession

pytestmark = pytest.mark.spark


_PROBE = Path(__file__).with_name("session_probe.py")
_TIMEOUT_S = 5 * PATIENCE_S


class _Session(NamedTuple):
    settings: dict[str, str]
    marks: list[str]
    shipped: list[str]
    said: str


def _session(command: Sequence[str], conf: Path, **variables: str) -> _Session:
    """The session of the probe, run by a command, where this folder has spark-defaults.conf."""
    told = {name: value for name, value in os.environ.items() if name != "MASTER"}
    environment = spark_submit_environment(told) | {
        "PYTHONPATH": str(ROOT),
        "SPARK_CONF_DIR": str(conf),
        **variables,
    }
    run = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    said = run.stdout + run.stderr
    found = [line for line in run.stdout.splitlines() if line.startswith('{"settings"')]
    assert len(found) == 1, said
    return _Session(**json.loads(found[0]), said=said)


def _submit(*words: str) -> list[str]:
    jars = ",".join(str(jar) for jar in locked_jars("spark"))
    return [str(spark_home() / "bin" / "spark-submit"), "--jars", jars, *words, str(_PROBE), "{}"]


def _jar(folder: Path, mark: str) -> Path:
    """A jar that is known on the class path by an entry of its name."""
    path = folder / f"{mark}.jar"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(mark, "")
    return path


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """A folder with a spark-defaults.conf, which names a jar of its own and one of ours, too."""
    jars = [_jar(tmp_path, "of-the-file"), locked_jars("spark")[0]]
    defaults: dict[str, Any] = {
        "spark.jars": ",".join(map(str, jars)),
        "spark.executorEnv.SAID": "in the file",
        "spark.scheduler.mode": "FIFO",
        "spark.sql.session.timeZone": "Europe/Oslo",
    }
    lines = [f"{key} {value}\n" for key, value in defaults.items()]
    (tmp_path / "spark-defaults.conf").write_text("# of a site\n" + "".join(lines))
    return tmp_path


def _add(conf: Path, line: str) -> None:
    with (conf / "spark-defaults.conf").open("a") as file:
        file.write(line + "\n")


@pytest.mark.test_all
@pytest.mark.promise("order-spark-told-master")
def test_jars_of_the_file_of_options_and_ours_are_all_there_each_once(conf: Path) -> None:
    """In a program of one's own; the driver finds them, and executors are sent each."""
    _add(conf, "spark.master local[3,2]")
    _add(conf, "spark.driver.host 127.0.0.3")
    options = json.dumps({"spark.jars": str(_jar(conf, "of-options"))})
    probe = [sys.executable, str(_PROBE), options, "of-options", "of-the-file"]
    found = _session(probe, conf)
    assert found.marks == ["of-options", "of-the-file"]
    ours = [jar.name for jar in locked_jars("spark")]
    assert found.shipped == sorted([*ours, "of-options.jar", "of-the-file.jar"])
    assert found.settings["spark.master"] == "local[3,2]"
    assert found.settings["spark.executorEnv.SAID"] == "in the file"
    assert found.settings["spark.scheduler.mode"] == "FIFO"
    assert found.settings["spark.driver.host"] == "127.0.0.3"
    assert "spark.driver.bindAddress" not in found.settings
    assert found.settings["spark.sql.session.timeZone"] == "UTC"
    assert "spark.sql.session.timeZone is UTC in this job, not Europe/Oslo as given" in found.said


@pytest.mark.test_all
@pytest.mark.promise("order-spark-told-master")
def test_command_of_a_job_joins_its_jars_and_brings_its_own_master(conf: Path) -> None:
    """As `sequitur process` gives it, for bolts that wait."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SPARK_CONF_DIR", str(conf))
        patched.delenv("MASTER", raising=False)
        command = spark_submit_command(
            ["{}", "of-options", "of-the-file"],
            job=_PROBE,
            master=chosen_master({}, WAITING_MASTER),
            options={"spark.jars": str(_jar(conf, "of-options"))},
        )
    found = _session(command, conf)
    assert found.settings["spark.master"] == WAITING_MASTER
    assert found.marks == ["of-options", "of-the-file"]
    ours = [jar.name for jar in locked_jars("spark")]
    assert found.shipped == sorted([*ours, "of-options.jar", "of-the-file.jar"])


@pytest.mark.promise("order-spark-told-master")
def test_switches_of_spark_submit_are_known(spark: SparkSession) -> None:
    """One that were not would take the word behind it, which may be the master."""
    jvm: Any = spark.sparkContext._jvm
    gateway: Any = spark.sparkContext._gateway
    kind = jvm.java.lang.Class.forName("org.apache.spark.launcher.SparkSubmitOptionParser")
    constructor = kind.getDeclaredConstructor(gateway.new_array(jvm.java.lang.Class, 0))
    constructor.setAccessible(True)
    parser = constructor.newInstance(gateway.new_array(jvm.java.lang.Object, 0))
    field = kind.getDeclaredField("switches")
    field.setAccessible(True)
    assert {name for names in field.get(parser) for name in names} == SWITCHES


@pytest.mark.test_all
@pytest.mark.promise("order-spark-told-master")
def test_master_of_the_defaults_stays_beside_another_file(conf: Path, tmp_path: Path) -> None:
    """Spark reads them behind a file of properties, too, where it is told to."""
    _add(conf, "spark.master local[3,2]")
    file = tmp_path / "properties"
    file.write_text("spark.executorEnv.SAID in the other file\n")
    found = _session(_submit("--properties-file", str(file), "--load-spark-defaults"), conf)
    assert found.settings["spark.master"] == "local[3,2]"
    assert found.settings["spark.executorEnv.SAID"] == "in the other file"


@pytest.mark.promise("order-spark-told-master", "order-task-python-process")
def test_master_that_spark_submit_makes_up_gives_way_to_ours(
    conf: Path, spark: SparkSession
) -> None:
    """Nobody asked for `local[*]`, which tries no task twice."""
    found = _session(_submit(), conf)
    assert found.settings["spark.master"] == DEFAULT_MASTER == spark.sparkContext.master
    assert found.settings["spark.app.name"] == "probe"
    assert found.settings["spark.driver.host"] == "127.0.0.1"
    assert found.settings["spark.driver.bindAddress"] == "127.0.0.1"


@pytest.mark.test_all
@pytest.mark.promise("order-spark-told-master")
def test_command_line_wins_over_the_file_and_over_ours(conf: Path) -> None:
    """Also with the very master that spark-submit makes up. What a job needs stays, and is told."""
    _add(conf, "spark.ui.enabled false")
    given = {
        "spark.executorEnv.SAID": "on the line",
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.python.daemon.module": "pyspark.daemon",
        "spark.sql.adaptive.enabled": "true",
    }
    words = [word for key, value in given.items() for word in ("--conf", f"{key}={value}")]
    found = _session(_submit("--master", "local[*]", "--name", "mine", *words), conf)
    needed = {"spark.sql.adaptive.enabled": "false"}
    assert {key: found.settings.get(key) for key in given} == given | needed
    assert found.settings["spark.master"] == "local[*]"
    assert found.settings["spark.app.name"] == "mine"
    assert "spark.sql.adaptive.enabled is false in this job, not true as given" in found.said


@pytest.mark.test_all
def test_spark_has_no_cluster_mode_for_python_on_a_master_of_its_own() -> None:
    """As docs/deploy.md says, which names what to do instead."""
    words = ("--master", "spark://127.0.0.1:1", "--deploy-mode", "cluster", "--supervise")
    run = subprocess.run(
        [str(spark_home() / "bin" / "spark-submit"), *words, str(_PROBE)],
        env=spark_submit_environment(os.environ),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    said = "Cluster deploy mode is currently not supported for python applications on standalone"
    assert run.returncode != 0
    assert said in run.stderr
    assert said in (ROOT / "docs" / "deploy.md").read_text()


class _TimeoutError(BaseException):
    """As pytest's own, no `Exception`: py4j does not catch it."""


def _be_ended() -> NoReturn:
    raise _TimeoutError


@pytest.mark.test_all
def test_a_session_that_was_broken_within_a_call_is_replaced(
    shared_session: SharedSession,
) -> None:
    """Only the test that took too long fails, and not all behind it."""
    broken = shared_session.get()
    assert shared_session.get() is broken
    gateway: Any = SparkContext._gateway
    connection = gateway._gateway_client.get_thread_connection()
    stream, connection.stream = connection.stream, SimpleNamespace(readline=_be_ended)
    with pytest.raises(_TimeoutError):
        broken.sparkContext._jvm.java.lang.System.nanoTime()  # type: ignore[union-attr]
    connection.stream = stream
    replaced = shared_session.get()
    assert replaced is not broken
    assert replaced.range(3).count() == 3
    assert gateway.proc.poll() is not None


_PROCESS = Path("/proc/self")
_COMPARED = 3
_ONCE = {"threads": 1, "files": 1}
"""Java's collector has a thread and a connection here, once it has found something."""


def _kept(spark: SparkSession) -> dict[str, int]:
    """What this process holds, once its garbage is collected."""
    gc.collect()
    gateway: Any = spark.sparkContext._gateway
    return {
        "engines": sum(isinstance(one, ReorderEngine) for one in gc.get_objects()),
        "callbacks": len(gateway.gateway_property.pool),
        "java objects": len(ThreadSafeFinalizer.finalizers),
        "threads": sum(1 for _ in _PROCESS.joinpath("task").iterdir()),
        "files": sum(1 for _ in _PROCESS.joinpath("fd").iterdir()),
    }


@pytest.mark.promise("on-step-program-calls-reorder")
@pytest.mark.parametrize("runs", [9, pytest.param(20, marks=pytest.mark.test_all)])
def test_no_run_leaves_anything_behind(
    spark: SparkSession, job: Job, tmp_path: Path, runs: int
) -> None:
    """As much is held after all runs as after three; a query of the program's own goes on.

    It has a batch where a file comes, and so none while Java objects are counted: a batch has some.
    """
    seen: list[int] = []
    come = tmp_path / "come"
    come.mkdir()

    def see(rows: DataFrame, batch_id: int) -> None:
        del rows
        seen.append(batch_id)

    def has_a_batch() -> None:
        before = len(seen)
        tmp_path.joinpath("one").write_text("row\n")
        tmp_path.joinpath("one").rename(come / str(before))
        wait_until(lambda: len(seen) > before)

    own = (
        spark.readStream.text(str(come))
        .writeStream.foreachBatch(see)
        .option("checkpointLocation", str(tmp_path / "own"))
        .start()
    )
    try:
        has_a_batch()
        for n in range(runs):
            job.produce([event(1_700_000_000_000 + n)])
            report = reorder(
                job.kafka, job.settings, stop=threading.Event(), available_now=True, drain=True
            )
            assert report.totals.read == n + 1
            if n + 1 == _COMPARED:
                kept = _kept(spark)
        most = {name: count + _ONCE.get(name, 0) for name, count in kept.items()}
        most["engines"] = 0
        too_many: dict[str, tuple[int, int]] = {}

        def is_no_more() -> bool:
            found = _kept(spark)
            too_many.clear()
            too_many.update(
                {name: (found[name], most[name]) for name in most if found[name] > most[name]}
            )
            return not too_many

        # A thread may be about to end.
        with contextlib.suppress(TimeoutError):
            wait_until(is_no_more)
        assert too_many == {}
        has_a_batch()
        assert own.isActive
    finally:
        own.stop()
