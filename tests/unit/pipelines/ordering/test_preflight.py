"""What is refused before Spark starts: in one line, and by name."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any, Final

import pytest
from typer.testing import CliRunner

from sequitur.cli.main import app
from sequitur.consumer.reorder import ReorderSettings
from sequitur.errors import BrokerUnreachableError, CheckpointError, ReorderError, SettingsError
from sequitur.pipelines import process, reorder
from sequitur.pipelines.ordering.job import reorder as reorder_on_spark
from sequitur.pipelines.ordering.job import run_submitted
from sequitur.pipelines.ordering.preflight import check_before_start
from sequitur.pipelines.ordering.progress import ProgressStyle
from sequitur.pipelines.run_options import RunOptions
from sequitur.producer import KafkaSettings
from tests.support.tree import EXAMPLES
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_NOWHERE = "127.0.0.1:1"
_KAFKA = KafkaSettings(bootstrap_servers=_NOWHERE)
_TIMEOUT_S = PATIENCE_S
_TOPOLOGY = EXAMPLES / "wordcount.py"


def _settings(tmp_path: Path, **more: Any) -> ReorderSettings:
    return ReorderSettings.model_validate(
        {
            "input_topics": ["readings"],
            "output_topic": "ordered",
            "event_time": "json:at",
            "checkpoint": str(tmp_path / "made" / "later"),
            **more,
        }
    )


@pytest.mark.promise("cli-job-run-broker")
def test_broker_that_is_away_is_named(tmp_path: Path) -> None:
    with pytest.raises(BrokerUnreachableError, match=f"no broker can be reached: {_NOWHERE}: "):
        check_before_start(KafkaSettings(bootstrap_servers=_NOWHERE), _settings(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.promise("cli-job-run-broker")
def test_checkpoint_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    """Nor below a file; also as a URI."""
    file = tmp_path / "file"
    file.touch()
    for checkpoint in (f"{file}/state", f"file:{file}/state", f"file://{file}", str(file)):
        with pytest.raises(CheckpointError, match=f"{file} is not a folder"):
            check_before_start(_KAFKA, _settings(tmp_path, checkpoint=checkpoint))


@pytest.mark.promise("cli-job-run-broker")
@pytest.mark.parametrize(
    ("below", "reason"),
    [
        ("/proc/self/sequitur/state", r"No such file or directory \(in /proc/self\)"),
        ("x" * 300, "File name too long"),
        ("a\0b", "embedded null byte"),
    ],
)
def test_checkpoint_that_cannot_be_made_is_refused(tmp_path: Path, below: str, reason: str) -> None:
    """Rights alone do not say: it is tried. Nothing is left of that."""
    checkpoint = str(tmp_path / "made" / below)
    with pytest.raises(CheckpointError, match=f"cannot be written: {reason}"):
        check_before_start(_KAFKA, _settings(tmp_path, checkpoint=checkpoint))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.promise("cli-job-run-broker")
def test_checkpoint_on_a_full_disk_is_refused(tmp_path: Path) -> None:
    """A folder can be made there, a byte cannot be written."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=f"cannot be written: .* \\(in {tmp_path}\\)"):
            check_before_start(_KAFKA, _settings(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.promise("cli-job-run-broker")
def test_metrics_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ReorderError, match=f"cannot listen on {address}: Address already"):
            check_before_start(
                KafkaSettings(bootstrap_servers=_NOWHERE), _settings(tmp_path, metrics=address)
            )


_TOKEN: Final = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "OAUTHBEARER",
    "sasl_token_file": __file__,
}
_NO_TOKENS: Final = (
    r"kafka\.sasl_mechanism = 'OAUTHBEARER': jobs on Spark cannot use it\. Give --runner local, or "
    r"log in by SCRAM-SHA-256, SCRAM-SHA-512, PLAIN or a client certificate"
)


@pytest.mark.promise("cli-job-run-broker")
@pytest.mark.parametrize("started", ["by the command", "by spark-submit", "by a program"])
def test_token_login_is_refused_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: str
) -> None:
    """Before any broker is asked, too: Spark's client could not log in."""
    kafka = KafkaSettings.model_validate({"bootstrap_servers": _NOWHERE, **_TOKEN})
    settings = _settings(tmp_path)
    monkeypatch.setattr("sequitur.cli.jobs.find_java", lambda: None)
    words = ["reorder", "--input-topics", "readings", "--output-topic", "ordered"]
    words += ["--event-time", "json:at", "--checkpoint", settings.checkpoint]
    words += ["--bootstrap-servers", _NOWHERE]
    for name, value in _TOKEN.items():
        words += [f"--{name.replace('_', '-')}", value]
    options = RunOptions(progress=ProgressStyle.TEXT)
    start: dict[str, Callable[[], object]] = {
        "by the command": lambda: CliRunner().invoke(app, words, catch_exceptions=False),
        "by spark-submit": lambda: run_submitted("reorder", kafka, settings, options),
        "by a program": lambda: reorder_on_spark(kafka, settings),
    }
    with pytest.raises(SettingsError, match=_NO_TOKENS):
        start[started]()
    local = CliRunner().invoke(app, [*words, "--runner", "local"])
    assert isinstance(local.exception, BrokerUnreachableError)


def _run(words: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
    # Whoever starts a JVM finds none.
    environ = {**os.environ, "SPARK_HOME": "/nowhere"}
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
        env=environ,
    )


@pytest.mark.promise("cli-job-run-broker")
@pytest.mark.parametrize(
    "words",
    [
        ["-m", "sequitur", "reorder"],
        ["-m", "sequitur", "process", _TOPOLOGY],
        [reorder.__file__],
        [process.__file__, _TOPOLOGY],
    ],
)
def test_job_is_refused_in_one_line(tmp_path: Path, words: list[str | Path]) -> None:
    given = ["--bootstrap-servers", _NOWHERE, "--input-topics", "readings"]
    given += ["--output-topic", "ordered", "--event-time", "json:at"]
    given += ["--checkpoint", str(tmp_path / "state")]
    done = _run([*words, *given])
    line = f"sequitur: no broker can be reached: {_NOWHERE}: Connection refused\n"
    assert (done.returncode, done.stdout, done.stderr) == (3, "", line)


@pytest.mark.promise("cli-job-fails-runs")
@pytest.mark.parametrize("job", [reorder.__file__, process.__file__])
def test_ctrl_c_while_a_job_loads_says_nothing(job: str) -> None:
    """The process ends by the signal, without a traceback of imports."""
    program = f"""
        import os, runpy, signal, sys

        class Interrupt:
            def find_spec(self, name, path, target=None):
                if name == "sequitur.pipelines.ordering.job":
                    os.kill(os.getpid(), signal.SIGINT)

        sys.meta_path.insert(0, Interrupt())
        runpy.run_path({job!r}, run_name="__main__")
    """
    done = _run(["-c", textwrap.dedent(program)])
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
