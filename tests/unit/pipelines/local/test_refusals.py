"""What the local runner refuses, and what tells of it: in one line, and by name."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from sequitur.cli.main import app
from sequitur.consumer.reorder import ReorderSettings
from sequitur.errors import (
    BrokerUnreachableError,
    CheckpointError,
    MissingExtraError,
    ReorderError,
    TopicError,
)
from sequitur.local import reorder
from sequitur.pipelines.local.refusals import check_local, checked_pattern
from sequitur.pipelines.ordering.job import refuse_local
from tests.support.tree import EXAMPLES, ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

_NOWHERE = "127.0.0.1:1"


def _settings(**more: Any) -> ReorderSettings:
    given = {"input_topics": ["in"], "output_topic": "out", "event_time": "json:at", **more}
    return ReorderSettings.model_validate({"checkpoint": "/nowhere", **given})


def _invoke(tmp_path: Path, command: list[str], *flags: str) -> Result:
    words = ["--input-topics", "in", "--output-topic", "out", "--event-time", "json:at"]
    words += ["--bootstrap-servers", _NOWHERE, "--checkpoint", str(tmp_path / "state")]
    return CliRunner().invoke(app, [*command, *words, *flags])


@pytest.mark.promise("cli-local-runner-refuses")
@pytest.mark.parametrize("flag", [["--master", "local[2]"], ["--conf", "spark.ui.enabled=true"]])
def test_master_and_settings_of_spark_are_refused(tmp_path: Path, flag: list[str]) -> None:
    told = _invoke(tmp_path, ["reorder"], "--runner", "local", *flag)
    assert told.exit_code == 2
    assert flag[0] in told.output
    assert "--runner spark" in " ".join(told.output.split())


@pytest.mark.promise("cli-local-runner-refuses")
@pytest.mark.parametrize("checkpoint", ["hdfs://name:8020/state", "hdfs:/state", "viewfs://c/s"])
def test_checkpoint_in_hdfs_is_refused(checkpoint: str) -> None:
    with pytest.raises(CheckpointError, match=rf"{checkpoint}: .* HDFS.* runner = \"spark\""):
        check_local(_settings(checkpoint=checkpoint))
    check_local(_settings(checkpoint="/hdfs:/state"))


@pytest.mark.promise("cli-local-runner-refuses")
@pytest.mark.parametrize("pattern", [r"a\d+", "a[bc]", "a{2}", "^a$", r"\p{Lower}", "(?i)a*+&&"])
def test_pattern_that_java_may_read_otherwise_is_refused(pattern: str) -> None:
    settings = _settings(input_topics=[], input_pattern=pattern)
    with pytest.raises(TopicError, match=r"input_pattern .*: Java may read it otherwise"):
        check_local(settings)
    with pytest.raises(TopicError, match=r"input_pattern .*: "):
        checked_pattern("(a")
    check_local(_settings(input_topics=[], input_pattern=r"readings\..+|(more-)?a_b"))


def test_spark_submit_starts_no_job_without_spark() -> None:
    with pytest.raises(ReorderError, match=r"spark-submit runs it on Spark: start it by"):
        refuse_local(_settings(runner="local"))
    refuse_local(_settings())


@pytest.mark.parametrize("command", [["reorder"], ["process", str(EXAMPLES / "wordcount.py")]])
def test_job_is_looked_at_before_it_starts(tmp_path: Path, command: list[str]) -> None:
    """As on Spark: of a broker that is away nothing is left but a line."""
    told = _invoke(tmp_path, command, "--runner", "local")
    assert isinstance(told.exception, BrokerUnreachableError), told.output
    assert [*tmp_path.iterdir()] == []
    with pytest.raises(BrokerUnreachableError):
        reorder(_NOWHERE, _settings(checkpoint=str(tmp_path / "state")))


@pytest.mark.promise("cli-local-runner-refuses")
def test_who_has_no_spark_is_told_both_ways_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise MissingExtraError("a job on Spark needs the package pyspark: pip install 'x[spark]'")

    monkeypatch.setattr("sequitur.cli.jobs.spark_home", missing)
    told = _invoke(tmp_path, ["reorder"])
    assert isinstance(told.exception, MissingExtraError)
    assert "[spark]" in str(told.exception)
    assert "--runner local (pip install 'sequitur-kafka[local]')" in str(told.exception)


@pytest.mark.promise("order-local-runner-needs")
def test_neither_spark_nor_java_is_loaded() -> None:
    """Nor can they be: the packages are not there."""
    asked = """
import sys
for name in ("pyspark", "py4j"):
    sys.modules[name] = None
import sequitur.local
from sequitur.cli.main import app
from sequitur.pipelines.ordering.inspection import inspect_checkpoint
"""
    subprocess.run([sys.executable, "-c", asked], cwd=ROOT, check=True, capture_output=True)
