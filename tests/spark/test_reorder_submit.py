"""The reorder job as its users start it: by spark-submit, and ended by Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from sequitur.consumer.reorder import parse_event_time_spec
from sequitur.pipelines.ordering.spark_signals import stop_on_signals
from tests.spark.submitted_job import SubmittedJob
from tests.support.events import T0, event, time_of
from tests.support.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.conftest import Job

pytestmark = [pytest.mark.spark, pytest.mark.slow]  # starts Spark each time


def _ctrl_c(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGINT)


def _terminate(process: subprocess.Popen[str]) -> None:
    process.terminate()


@pytest.mark.promise("order-ctrl-sigterm-job")
@pytest.mark.parametrize("end", [pytest.param(_ctrl_c, marks=pytest.mark.test_all), _terminate])
def test_a_signal_ends_the_job_cleanly(
    job: Job, tmp_path: Path, end: Callable[[subprocess.Popen[str]], None]
) -> None:
    """Whoever of the JVM and Python gets it, the job ends with status 0 and loses nothing."""
    job = job.with_settings(max_offsets_per_trigger=100)
    events = [event(T0 + 10 * n, partition=n % 4) for n in range(1600)]
    job.produce(events)
    report = tmp_path / "report.json"
    with SubmittedJob(job.kafka, job.settings, "--report", str(report)) as life:
        lines = life.steps()
        steps = [next(lines), next(lines)]
        end(life.process)
        last = [*steps, *lines][-1]
        life.end()
        assert "Exception" not in life.complaints()
        assert "Traceback" not in life.complaints()
    assert last == json.loads(report.read_text())
    assert last["read"] == last["released"] + last["held"] < 1600
    again = job.with_settings(max_offsets_per_trigger=10_000).run(drain=True)
    assert again.totals.released == again.totals.read == 1600
    released = job.released()
    assert sorted(time_of(record) for record in released) == [T0 + 10 * n for n in range(1600)]


@pytest.mark.test_all
def test_live_progress_comes_through_spark_submit(job: Job) -> None:
    """A terminal behind spark-submit shows one line that renews itself, and a table at the end."""
    job.produce([event(T0 + 10 * n, partition=n % 4) for n in range(400)])
    flags = ("--available-now", "--drain", "--progress", "live")
    with SubmittedJob(job.kafka, job.settings, *flags) as life:
        said = life.end()
    assert "\x1b[2K" in said  # the line was cleared and written again
    assert "released 400 · late 0" in said
    assert "Rows since the checkpoint began" in said
    assert "{" not in said


@pytest.mark.test_all
def test_wrong_topic_ends_the_job_with_a_sentence(job: Job) -> None:
    """What is wrong is said in a line, not in a traceback, and the status tells."""
    wrong = job.with_settings(input_topics=["no-such-topic"])
    with SubmittedJob(job.kafka, wrong.settings) as life:
        assert life.end(status=3) == ""
        said = life.complaints()
    assert "sequitur: input topic 'no-such-topic' does not exist" in said
    assert "Traceback" not in said


@pytest.mark.test_all
@pytest.mark.promise("cli-job-fails-runs")
def test_error_of_a_running_job_is_one_line(job: Job) -> None:
    """Neither Spark nor Java nor Python shows where it came from; what is wrong is said once."""
    job.produce([event(T0 + 60_000 * (n == 0), partition=n % 4) for n in range(8)])
    job.with_settings(max_offsets_per_trigger=4).run(drain=True)
    job.produce([event(T0 - 1, key="other", partition=1)])
    strict = job.with_settings(late_policy="fail", rescue=False)
    with SubmittedJob(job.kafka, strict.settings, "--available-now") as life:
        assert life.end(status=3) == ""
        lines = life.complaints().splitlines()
    # What Java says of itself at its start is said of each job.
    (line,) = [line for line in lines if not line.startswith("WARNING: Using incubator modules")]
    assert line.startswith("sequitur: topic ")
    assert line.endswith("(late_policy = fail)")


@pytest.mark.test_all
@pytest.mark.promise("order-event-time-names")
def test_a_wrong_event_time_is_no_success(job: Job, tmp_path: Path) -> None:
    """A run all of whose rows were quarantined has a status of its own, and says what rows have."""
    job.produce([event(T0 + n, partition=n % 4, place="roof") for n in range(400)])
    wrong = job.with_settings(event_time=parse_event_time_spec("json:time"))
    report = tmp_path / "report.json"
    flags = ("--available-now", "--drain", "--report", str(report))
    with SubmittedJob(job.kafka, wrong.settings, *flags) as life:
        life.end(status=4)
        said = life.complaints().splitlines()
    says = "event-time-missing: event_time = 'json:time', and they have the fields at, place"
    assert f"warning: 400 of 400 rows were quarantined, {says}" in said
    assert said[-1] == f"sequitur: all 400 rows of this run were quarantined, {says}"
    found = json.loads(report.read_text())
    assert (found["read"], found["quarantined"], found["released"]) == (400, 400, 0)


@pytest.mark.test_all
def test_ctrl_c_spares_the_programs_that_spark_runs(spark: SparkSession) -> None:
    """Hadoop runs chmod for each local file; ended by Ctrl-C, it would fail the batch."""
    jvm: Any = spark.sparkContext._jvm
    builder = jvm.java.lang.ProcessBuilder(["sh", "-c", "kill -INT $$; echo alive"])
    with stop_on_signals(threading.Event(), spark):
        output = builder.start().getInputStream().readAllBytes()
    assert bytes(output) == b"alive\n"


def _cpu_to_start_python_s() -> float:
    """Return what passes before the job's own code, which answers to Ctrl-C."""
    before = os.times()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


@pytest.mark.test_all
@pytest.mark.promise("cli-job-fails-runs")
@pytest.mark.parametrize("cpu_s", [0.1, 0.3, 0.6])
def test_ctrl_c_while_a_job_loads_shows_no_stack(job: Job, cpu_s: float) -> None:
    """At any moment: Python imports, asks brokers, or waits for the session; the JVM is there."""
    cpu_s += 2 * _cpu_to_start_python_s()
    with SubmittedJob(job.kafka, job.settings) as life:
        jvm = psutil.Process(life.pid)

        def has_come_so_far() -> bool:
            assert life.process.poll() is None, life.complaints()
            with contextlib.suppress(psutil.NoSuchProcess):
                return any(
                    one.name().startswith("python") and sum(one.cpu_times()[:2]) >= cpu_s
                    for one in jvm.children(recursive=True)
                )
            return False

        wait_until(has_come_so_far, patience_s=4 * PATIENCE_S)
        os.killpg(life.pid, signal.SIGINT)  # as a terminal does
        life.process.wait(timeout=4 * PATIENCE_S)
        output, said = life.end(life.process.returncode), life.complaints()
    assert output == ""
    lines = [one for one in said.splitlines() if not one.startswith("WARNING: Using incubator")]
    assert len(lines) <= 1, said
    assert "Traceback" not in said


@pytest.mark.test_all
@pytest.mark.promise("cli-job-fails-runs")
def test_ctrl_c_while_spark_starts_says_nothing() -> None:
    """PySpark's own handler would show two stacks, once there is a session."""
    program = """
        import os, signal, time
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # as the jobs do
        from sequitur.pipelines.session import build_session
        assert build_session("interrupted", leaves_ctrl_c=True).range(3).count() == 3
        print("started", flush=True)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False,
    )  # fmt: skip
    assert (run.returncode, run.stdout) == (-signal.SIGINT, "started\n"), run.stderr
    assert "Traceback" not in run.stderr
