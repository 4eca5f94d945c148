"""The process job as its users start it: `sequitur process`, through spark-submit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.submitted_job import SHORT_LIVED
from tests.support.events import T0, Event
from tests.support.output_reading import read_output
from tests.support.tree import EXAMPLES, ROOT
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeTopic
    from tests.spark.conftest import Job

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.test_all]  # starts Spark each time

_TIMEOUT_S = 8 * PATIENCE_S


def _run(job: Job, example: Path, folder: Path) -> dict[str, Any]:
    """Run a topology on what is there, by a job.toml; its last line is the report."""
    config = folder / "job.toml"
    settings = job.settings
    config.write_text(
        f"""
        [kafka]
        bootstrap_servers = "{job.kafka.bootstrap_servers}"

        [reorder]
        input_topics = ["{job.topic}"]
        output_topic = "{settings.output_topic}"
        event_time = "kafka-timestamp"
        delay = "1 s"
        checkpoint = "{settings.checkpoint}"

        [process]
        max_attempts = 3
        """
    )
    words = ["process", str(example), "--config", str(config), "--available-now", "--drain"]
    for conf in ("spark.driver.memory=700m", f"spark.driver.extraJavaOptions={SHORT_LIVED}"):
        words += ["--conf", conf]
    done = subprocess.run(
        [sys.executable, "-m", "sequitur", *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        env={name: value for name, value in os.environ.items() if "SEQUITUR" not in name},
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return report


def _events(*values: str, every_ms: int = 1) -> list[Event]:
    return [
        Event(value=value.encode(), key=b"k", timestamp_ms=T0 + every_ms * number)
        for number, value in enumerate(values)
    ]


def test_example_runs_by_a_config_file(job: Job, make_topic: MakeTopic, tmp_path: Path) -> None:
    """A user's file in a folder of its own is found by the tasks; its outputs are in its topic."""
    topic = make_topic(partitions=2)
    example = tmp_path / "my_words.py"
    text = (EXAMPLES / "wordcount.py").read_text()
    assert 'topic="word-counts"' in text
    example.write_text(text.replace('topic="word-counts"', f'topic="{topic}"'))
    job.produce(_events("to be or not to be", "that is the question", "to do"))
    report = _run(job, example, tmp_path)
    counts = {record.key: record.value for record in read_output(job.kafka, topic)}
    assert counts[b"to"] == b"3"
    assert counts[b"be"] == b"2"
    assert report["processed"]["acked"] == report["processed"]["taken"] == 3


@pytest.mark.promise("process-topology-invalid-file")
def test_file_that_is_no_topology_is_refused(job: Job, tmp_path: Path) -> None:
    """What is wrong with a topology is told by name, before Spark is started."""
    wrong = tmp_path / "wrong.py"
    wrong.write_text("from sequitur import TopologyBuilder\nTopologyBuilder('empty').build()\n")
    with pytest.raises(AssertionError, match="topology 'empty' has no spout"):
        _run(job, wrong, tmp_path)
