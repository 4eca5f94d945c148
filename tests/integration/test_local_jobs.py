"""Whole jobs of the local runner on a real broker: each feature once, as it is on Spark."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pytest

from sequitur.base.ports import choose_free
from sequitur.base.process import ProcessIdentity
from sequitur.cli.main import main
from sequitur.consumer.subscription.cursor_store import CursorStore
from sequitur.consumer.topology import ProcessSettings
from sequitur.errors import StepFunctionError, SubscriptionFencedError
from sequitur.kafka.admin import KafkaTopics
from sequitur.kafka.partition import SourcePartition
from sequitur.local import JobReport, reorder
from sequitur.pipelines.ordering.inspection import inspect_checkpoint
from sequitur.pipelines.ordering.opening import ProcessStage
from sequitur.pipelines.topology.topology_file import load_topology
from sequitur.producer import KafkaSettings
from tests.support.events import T0, assert_ordered, contents, event, shuffled, time_of
from tests.support.local_jobs import LocalJob
from tests.support.on_step import Taken, numbered_events, released_rows
from tests.support.output_reading import read_output
from tests.support.s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server
from tests.support.tree import EXAMPLES, ROOT
from tests.support.values import replace
from tests.support.waiting import PATIENCE_S, wait_until
from tests.support.word_states import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sequitur.consumer.subscription.stored_records import StoredSubscription
    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker

_PARTITIONS: Final = 4
_S: Final = 1_000
_DATABASE: Final = "sqlite:///global_count.db"


@pytest.fixture
def job(broker: Broker, make_topic: MakeTopic, tmp_path: Path) -> LocalJob:
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    return LocalJob(kafka, make_topic(partitions=_PARTITIONS), tmp_path)


# A subscription.


@pytest.fixture
def subscribed(job: LocalJob, kafka: KafkaSettings) -> LocalJob:
    job.kafka = kafka
    job.given |= {"delay": "10 s", "subscription": f"sub-{uuid4().hex[:8]}"}
    return job


def _send(job: LocalJob, *times: int | str) -> None:
    """Send events of so many seconds after the first, into one partition."""
    job.send([event(T0 + at * _S if isinstance(at, int) else at, partition=0) for at in times])


def _times(job: LocalJob) -> list[int]:
    return [(time_of(record) - T0) // _S for record in job.released()]


def _stored(job: LocalJob) -> StoredSubscription:
    found = CursorStore(job.kafka).read(job.given["subscription"])
    assert found is not None
    return found


@pytest.mark.promise("sub-job-subscription-work", "sub-checkpoint-deleted")
def test_cursor_moves_and_a_job_without_its_checkpoint_goes_on_there(subscribed: LocalJob) -> None:
    job, where = subscribed, SourcePartition(subscribed.topic, 0)
    _send(job, 0, 30, 1, 25, 29, "never", 40, 35)
    totals = job.run().totals
    assert (totals.released, totals.held) == (5, 2)
    assert [*_stored(job).cursors[where].cursor.unacked_ranges(0, 8)] == [(6, 8)]
    shutil.rmtree(job.given["checkpoint"])
    _send(job, 5, 45, 70)
    totals = job.run(drain=True).totals
    assert (totals.read, totals.late) == (5, 1), "rows that are acked are read again"
    assert _times(job) == [0, 1, 25, 29, 30, 35, 40, 45, 70]
    assert _stored(job).cursors[where].cursor.committed_offset == 11


@pytest.mark.promise("sub-jobs-subscription-older")
def test_newer_life_of_a_subscription_stops_the_older(subscribed: LocalJob) -> None:
    job = subscribed
    _send(job, 0, 30)
    with job.running() as life:
        wait_until(lambda: job.steps or not life.is_alive())
        with CursorStore(job.kafka).take(job.given["subscription"]) as other:
            assert other.stored is not None
            other.write(replace(other.stored.state, step=99), [])
            wait_until(lambda: not life.is_alive())
        error, life.error = life.error, None
    assert isinstance(error, SubscriptionFencedError)
    assert "was taken over" in str(error)
    assert _stored(job).state.step == 99


# What is looked at from outside.


@pytest.mark.promise("order-row-unaccounted", "order-sequitur-reorder-inspect")
def test_metrics_and_a_look_at_the_checkpoint_tell_what_a_running_job_did(job: LocalJob) -> None:
    job.given["metrics"] = address = f"127.0.0.1:{choose_free()}"
    job.send([event(T0 + 10 * n, partition=n % _PARTITIONS) for n in range(400)])
    job.send([event("soon", partition=0)])
    with job.running():
        wait_until(lambda: job.steps and job.steps[-1][1].totals.read == 401)
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as answer:
            scraped = answer.read().decode()
        report = inspect_checkpoint(job.given["checkpoint"])
    held = job.steps[-1][1].totals.held
    assert held > 0
    for line in (
        "sequitur_reorder_rows_read_total 401.0",
        f"sequitur_reorder_rows_released_total {400 - held}.0",
        f"sequitur_reorder_rows_held {held}.0",
        'sequitur_reorder_rows_quarantined_total{reason="event-time-unparsable"} 1.0',
    ):
        assert line in scraped
    served = {
        *re.findall(r"^(sequitur_reorder_\w+?)(?:_bucket|_sum|_count)?[ {]", scraped, re.MULTILINE)
    }
    told = {*re.findall(r"`(sequitur_reorder_\w+)", (ROOT / "docs" / "metrics.md").read_text())}
    assert told - served == {
        "sequitur_reorder_late_target_ratio",
        "sequitur_reorder_recent_late_ratio",
    }, "those of a learned delay alone"
    assert sum(run.held for run in report.runs) == held
    assert report.done.totals.read == 401


def _flags(job: LocalJob) -> tuple[str, ...]:
    """Flags of a bounded run that leaves this process its standard output."""
    return ("--config", str(job.config()), "--available-now", "--progress", "text")


def _main(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Run the program in this process; its exit code."""
    monkeypatch.setattr(sys, "argv", ["sequitur", *words])
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        signal.signal(signal.SIGINT, before)
    return int(ended.value.code or 0)


@pytest.mark.promise("order-sequitur-reorder-inspect")
def test_bounded_run_of_the_command_shows_its_steps_and_keeps_what_is_held(
    job: LocalJob, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The report is in its file, and `inspect` and the next run find what the run has left."""
    job.send([event(T0 + 10 * n, partition=n % _PARTITIONS) for n in range(400)])
    report = job.folder / "reports" / "report.json"
    said = subprocess.run(
        [
            *(sys.executable, "-m", "sequitur", "reorder", "--config", str(job.config())),
            *("--available-now", "--report", str(report)),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    *steps, last = map(json.loads, said.splitlines())
    assert last == json.loads(report.read_text())
    assert (last["read"], last["held"] > 0, last["released"] + last["held"]) == (400, True, 400)
    assert sum(step["read"] for step in steps) == 400
    assert {"step", "kind", "batch_id", "frontier_ms", "waits_for"} <= {*steps[0]}
    assert _main(monkeypatch, "reorder", "inspect", job.given["checkpoint"], "--json") == 0
    assert json.loads(capfd.readouterr().out)["totals"]["held"] == last["held"]
    assert _main(monkeypatch, "reorder", *_flags(job), "--drain") == 0
    shown = capfd.readouterr().out
    assert re.search(r"released 400 · late 0", shown), shown
    assert "Rows since the checkpoint began" in shown
    assert len(job.released()) == 400


# Where checkpoints are.


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3Server]:
    with S3Server() as one:
        yield one


@pytest.mark.promise("order-checkpoint-object-store")
@pytest.mark.parametrize("small_rows", [50_000, pytest.param(0, marks=pytest.mark.test_all)])
def test_checkpoint_on_s3_by_the_environment(
    job: LocalJob, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, small_rows: int
) -> None:
    """Endpoint and credentials are in it alone; a later life goes on, and `inspect` looks in."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    job.given |= {"checkpoint": f"s3://{BUCKET}/{uuid4().hex}", "small_batch_rows": small_rows}
    events = shuffled(400, seed=6)
    job.send(events[:300])
    held = job.run().totals.held
    assert held > 0
    assert inspect_checkpoint(job.given["checkpoint"]).done.totals.held == held
    job.send(events[300:])
    totals = job.run(drain=True).totals
    assert (totals.read, totals.released) == (400, 400)
    assert contents(job.released()) == contents(events)
    assert_ordered(job.released())


def test_bare_path_is_a_local_one_whatever_hadoop_says(
    job: LocalJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a relative one; the same folder by its URI goes on."""
    core = "<name>fs.defaultFS</name><value>hdfs://127.0.0.1:1</value>"
    (job.folder / "core-site.xml").write_text(
        f"<configuration><property>{core}</property></configuration>"
    )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(job.folder))
    monkeypatch.chdir(job.folder)
    job.given["checkpoint"] = "state"
    job.send([event(T0 + n, partition=n % _PARTITIONS) for n in range(40)])
    job.run()
    assert (job.folder / "state" / "spark" / "metadata").exists()
    job.given["checkpoint"] = f"file://{job.folder}/state"
    totals = job.run(drain=True).totals
    assert (totals.read, totals.released) == (40, 40)


# What gets the rows beside the topic.


@pytest.mark.promise("on-step-job-killed-step")
def test_function_is_given_what_the_topic_has_and_a_step_that_failed_again(job: LocalJob) -> None:
    job.given["max_offsets_per_trigger"] = 120
    job.send(numbered_events(400))
    taken = Taken(raises_at=[2])

    def run() -> JobReport:
        stop = threading.Event()
        return reorder(
            job.kafka, job.settings, stop=stop, on_step=taken, available_now=True, drain=True
        )

    with pytest.raises(StepFunctionError, match="the database is away"):
        run()
    report = run()
    assert report.totals.released == 400
    assert taken.steps[1] == taken.steps[2]
    assert taken.rows.pop(1) == taken.rows[1], "the second call failed, the third had the same"
    assert taken.all() == released_rows(job)


@pytest.mark.promise("process-bolt-transactional-topology")
def test_states_in_a_database_have_each_event_once(
    job: LocalJob, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Bolts run in processes, and another life goes on with the count of the one before it."""
    topic, url = make_topic(partitions=1), f"sqlite:///{tmp_path}/count.db"
    text = (EXAMPLES / "transactional_global_count.py").read_text()
    for before, now in (('topic="global-count"', f'topic="{topic}"'), (_DATABASE, url)):
        assert before in text
        text = text.replace(before, now)
    example = tmp_path / "global_count_on_local.py"
    example.write_text(text)
    job.process = ProcessStage(load_topology(example), ProcessSettings())
    job.given["max_offsets_per_trigger"] = 30
    events = shuffled(80, seed=7)
    for some in (events[:50], events[50:]):
        job.send(some)
        report = job.run(drain=True)
    assert (report.totals.released, len(job.released())) == (80, 0)
    count, _, batches = rows_of(url, "global_count")["all"]
    assert count == 80
    committed = [int(one.key or b"") for one in read_output(job.kafka, topic)]
    assert committed == [*range(1, batches + 1)], "each batch is out once"
    assert batches > 2


# How a job ends. That it does by a signal is in `test_local_runner`.


def _wrong_settings(job: LocalJob) -> None:
    job.given["delay"] = "soon"


def _no_topic(job: LocalJob) -> None:
    job.given["input_topics"] = ["no-such-topic"]


def _damage(job: LocalJob) -> None:
    job.send(shuffled(4, seed=8))
    job.run()
    (job.folder / "checkpoint" / "format.json").write_text("{")


def _lose_rows(job: LocalJob) -> None:
    job.send([event(T0 + n, partition=0) for n in range(10)])
    job.run()
    job.send([event(T0 + 5_000 + n, partition=0) for n in range(10)])
    KafkaTopics(job.kafka).delete_before({SourcePartition(job.topic, 0): 14})


def _nothing_usable(job: LocalJob) -> None:
    job.given["event_time"] = "json:time"
    job.send(shuffled(4, seed=8))


_WRONG: Final[dict[str, tuple[Callable[[LocalJob], None], int, str]]] = {
    "settings": (_wrong_settings, 2, r"reorder\.delay.*soon"),
    "topic": (_no_topic, 3, r"input topic 'no-such-topic' does not exist"),
    "damaged": (_damage, 3, r"checkpoint/format\.json"),
    "loss": (_lose_rows, 3, r"offsets 10 to 13: gone"),
    "unusable": (_nothing_usable, 4, r"all 4 rows of this run were quarantined"),
}


@pytest.mark.promise("cli-job-fails-runs")
@pytest.mark.parametrize("what", _WRONG)
def test_what_goes_wrong_has_the_exit_code_that_it_has_on_spark(
    job: LocalJob, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], what: str
) -> None:
    """And a line says what it was; there is no traceback."""
    go_wrong, status, line = _WRONG[what]
    go_wrong(job)
    assert _main(monkeypatch, "reorder", *_flags(job)) == status
    said = capfd.readouterr().err
    assert re.search(rf"sequitur: .*{line}", said), said
    assert "Traceback" not in said


@pytest.mark.promise("order-second-job-started", "cli-job-fails-runs")
def test_second_job_on_a_checkpoint_is_refused(
    job: LocalJob, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    job.send(shuffled(4, seed=8))
    with job.running() as life:
        wait_until(lambda: job.steps or not life.is_alive())
        assert _main(monkeypatch, "reorder", *_flags(job)) == 3
        assert f"{ProcessIdentity.own()}, has this checkpoint" in capfd.readouterr().err
        assert life.is_alive()
