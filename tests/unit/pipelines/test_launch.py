"""The spark-submit command of a job."""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING

import pytest

from sequitur.pipelines import launch

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _jars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        "sequitur.pipelines.jars.locked_jars", lambda group: [tmp_path / group, tmp_path / "b"]
    )
    monkeypatch.setenv("SEQUITUR_CACHE", str(tmp_path))  # with no archive of classes
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("MASTER", raising=False)


def _settings(command: list[str]) -> dict[str, str]:
    pairs = [word.split("=", 1) for flag, word in itertools.pairwise(command) if flag == "--conf"]
    return {key: value for key, value in pairs}  # noqa: C416 - mypy knows no lists of two


def test_command_holds_the_jars_the_job_and_its_arguments(tmp_path: Path) -> None:
    """The locked jars go by --jars, and what the job gets stands behind the job."""
    command = launch.spark_submit_command(["--config", "job.toml"])
    assert command[0].endswith("/bin/spark-submit")
    assert command[command.index("--jars") + 1] == f"{tmp_path / 'spark'},{tmp_path / 'b'}"
    assert command[command.index("--master") + 1] == "local[2,4]"
    assert command[-3:] == [str(launch.REORDER_JOB), "--config", "job.toml"]
    assert _settings(command)["spark.pyspark.python"] == sys.executable


def test_checkpoint_on_s3_brings_the_jars_that_spark_writes_there_by(tmp_path: Path) -> None:
    """Nobody could add them: a second list of jars takes the place of the first."""
    command = launch.spark_submit_command([], checkpoint="s3a://bucket/job")
    jars = command[command.index("--jars") + 1].split(",")
    assert {str(tmp_path / group) for group in ("spark", "s3")} <= set(jars)


def test_own_java_options_join_ours() -> None:
    """Whoever sets Java options keeps the quiet log."""
    command = launch.spark_submit_command([], options={"spark.driver.extraJavaOptions": "-Xint"})
    options = _settings(command)["spark.driver.extraJavaOptions"].split()
    assert options[0].startswith("-Dlog4j2.configurationFile=file:")
    assert options[1] == "-XX:+UseParallelGC"
    assert options[-1] == "-Xint"


def test_local_driver_has_memory_for_a_full_batch() -> None:
    """In one process the driver sorts, too; whoever asks for other memory gets it."""
    assert _settings(launch.spark_submit_command([]))["spark.driver.memory"] == "2g"
    own = launch.spark_submit_command([], options={"spark.driver.memory": "5g"})
    assert _settings(own)["spark.driver.memory"] == "5g"
    cluster = launch.spark_submit_command([], master="spark://h:7077")
    assert "spark.driver.memory" not in _settings(cluster)


def test_environment_names_this_spark_and_this_python() -> None:
    """Another Spark or Python on the path does not get in the way."""
    environment = launch.spark_submit_environment({"SPARK_HOME": "/other", "HOME": "/home/me"})
    assert environment["SPARK_HOME"] != "/other"
    assert environment["PYSPARK_PYTHON"] == sys.executable
    assert environment["HOME"] == "/home/me"


def test_collector_of_the_users_choice_is_the_only_one() -> None:
    """Two would keep the JVM from starting."""
    chosen = {"spark.driver.extraJavaOptions": "-XX:+UseZGC"}
    command = launch.spark_submit_command([], options=chosen)
    options = _settings(command)["spark.driver.extraJavaOptions"].split()
    assert [option for option in options if option.endswith("GC")] == ["-XX:+UseZGC"]


def test_compiler_of_the_users_choice_is_left_alone() -> None:
    """Our thresholds are for who has not chosen."""
    ours = _settings(launch.spark_submit_command([]))["spark.driver.extraJavaOptions"]
    assert "-XX:Tier4InvocationThreshold=" in ours
    for chosen in ("-XX:TieredStopAtLevel=1", "-XX:-TieredCompilation"):
        command = launch.spark_submit_command([], options={"spark.driver.extraJavaOptions": chosen})
        options = _settings(command)["spark.driver.extraJavaOptions"].split()
        assert [option for option in options if ":Tier" in option or "Tiered" in option] == [chosen]


def test_what_the_file_says_wins_over_ours_and_options_win_over_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jars and Java options join, since one has no use without the other."""
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.master local[7]\n"
        "spark.jars /file.jar\n"
        "spark.driver.memory 3g\n"
        "spark.pyspark.python /workers/python\n"
        "spark.driver.extraJavaOptions -Dfile=1\n"
    )
    command = launch.spark_submit_command([], options={"spark.jars": "/own.jar"})
    assert command[command.index("--master") + 1] == "local[7]"
    jars = f"/file.jar,/own.jar,{tmp_path / 'spark'},{tmp_path / 'b'}"
    assert command[command.index("--jars") + 1] == jars
    settings = _settings(command)
    assert settings.keys() == {"spark.pyspark.driver.python", "spark.driver.extraJavaOptions"}
    assert settings["spark.driver.extraJavaOptions"].endswith(" -Dfile=1")
    named = launch.spark_submit_command([], options={"spark.master": "local[5]"})
    assert named[named.index("--master") + 1] == "local[5]"
    flag = launch.spark_submit_command([], master="yarn", options={"spark.master": "local[5]"})
    assert flag[flag.index("--master") + 1] == "yarn"
    (tmp_path / "spark-defaults.conf").unlink()
    monkeypatch.setenv("MASTER", "local[6]")
    assert launch.chosen_master({}, "local[4,4]") == "local[6]"
    monkeypatch.delenv("MASTER")
    assert launch.chosen_master({}, "local[4,4]") == "local[4,4]"
