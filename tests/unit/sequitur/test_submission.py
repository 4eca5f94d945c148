"""What `sequitur process` and `sequitur reorder` give to spark-submit."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from sequitur.cli.main import app
from sequitur.errors import TopologyFileError
from tests.support.tree import EXAMPLES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_TOPOLOGY = """
from sequitur.consumer.topology import TopologyBuilder, bolt

@bolt(fields=("key", "value"))
def call(event):
    yield event.key, event.value

builder = TopologyBuilder("called")
builder.set_spout("events")
builder.set_bolt("call", call, concurrency={concurrency}).fields_grouping("events", "key")
builder.set_output("out").local_grouping("call")
topology = builder.build()
"""


@pytest.fixture
def command_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """The spark-submit command of a topology's text, and these flags."""
    commands: list[list[str]] = []
    monkeypatch.setattr("sequitur.cli.jobs.find_java", lambda: None)
    monkeypatch.setattr("sequitur.pipelines.ordering.preflight.check_before_spark", lambda *_: None)
    monkeypatch.setattr("sequitur.pipelines.jars.locked_jars", lambda _: [])
    monkeypatch.setattr("sequitur.cli.jobs.run_spark_submit", commands.append)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("MASTER", raising=False)

    def of(text: str, *flags: str) -> list[str]:
        file = tmp_path / f"topology_{uuid4().hex}.py"
        file.write_text(text)
        words = ["--input-topics", "in", "--output-topic", "out", "--event-time", "json:at"]
        words += ["--bootstrap-servers", "127.0.0.1:1", "--checkpoint", str(tmp_path / "state")]
        told = CliRunner().invoke(app, ["process", str(file), *words, *flags])
        assert told.exit_code == 0, told.output
        return commands.pop()

    return of


@pytest.fixture
def master_of(command_of: Callable[..., list[str]]) -> Callable[..., str]:
    """The master that a topology with this concurrency, and these flags, is given."""

    def of(concurrency: int, *flags: str) -> str:
        command = command_of(_TOPOLOGY.format(concurrency=concurrency), *flags)
        return command[command.index("--master") + 1]

    return of


def test_topology_whose_calls_wait_has_slots_to_read_meanwhile(
    master_of: Callable[..., str],
) -> None:
    """Two for its tasks, and the two that any job has."""
    assert master_of(16) == "local[4,4]"
    assert master_of(1) == "local[2,4]"


def test_master_that_was_given_is_taken(master_of: Callable[..., str], tmp_path: Path) -> None:
    """Whatever the topology does, and wherever Spark is told of it."""
    assert master_of(16, "--master", "local[3,4]") == "local[3,4]"
    assert master_of(16, "--conf", "spark.master=local[5]") == "local[5]"
    (tmp_path / "spark-defaults.conf").write_text("spark.master spark://h:7077")
    assert master_of(16) == "spark://h:7077"


@pytest.mark.promise("cli-progress-json")
def test_what_a_topology_prints_when_it_is_loaded_is_on_standard_error(
    command_of: Callable[..., list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    """A program reads the steps of the job on standard output."""
    command_of("import os; os.write(1, b'loaded\\n')" + _TOPOLOGY.format(concurrency=1))
    assert tuple(capfd.readouterr()) == ("", "loaded\n")


def test_file_of_one_host_is_refused_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where the master is a cluster, by whichever way it was told."""
    monkeypatch.setattr("sequitur.cli.jobs.find_java", lambda: None)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("STATE_URL", raising=False)
    (tmp_path / "spark-defaults.conf").write_text("spark.master spark://h:7077")
    words = ["--input-topics", "in", "--output-topic", "out", "--event-time", "json:at"]
    words += ["--bootstrap-servers", "127.0.0.1:1", "--checkpoint", str(tmp_path / "state")]
    example = str(EXAMPLES / "transactional_global_count.py")
    told = CliRunner().invoke(app, ["process", example, *words])
    assert isinstance(told.exception, TopologyFileError)
    assert "master is spark://h:7077" in str(told.exception)
