"""A transactional topology on a real broker and real Spark, with a database."""

from __future__ import annotations

import itertools
import json
import shutil
import sqlite3
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg
import pytest

from sequitur.consumer.topology import TopologyBuilder
from sequitur.consumer.topology.state import StateOwnerError
from sequitur.consumer.topology.step.transaction_run import CommitRun, ProcessingRun
from sequitur.errors import TopologyFileError, TopologyTaskError
from tests.spark import bolts as plain_bolts
from tests.spark import transactional_bolts as bolts
from tests.spark.conftest import Job, wait_until
from tests.support.events import event
from tests.support.golden import make_prepared_old

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.spark

T0 = 1_700_000_000_000


def _row(folder: Path) -> tuple[Any, ...]:
    """Value, previous value and transaction id of the count of all."""
    with sqlite3.connect(folder / "state.db") as database:
        ((value, previous, txid),) = database.execute(
            "SELECT value, previous, txid FROM global_count"
        )
    return value, previous, txid


def _written(job: Job) -> list[dict[str, int]]:
    found = [json.loads(record.value or b"") for record in job.released()]
    return sorted(found, key=lambda one: one["number"])


def test_each_step_is_a_transaction(job: Job, tmp_path: Path) -> None:
    """Ids count from 1 over restarts; each batch is one write, and goes out once."""
    job = job.running_topology(bolts.global_count(tmp_path))
    for batch, events in enumerate((40, 2, 7), 1):
        job.produce(event(T0 + 10_000 * batch + n, key=f"k{n}") for n in range(events))
        job.run(drain=True)
    found = _written(job)
    assert [one["number"] for one in found] == list(range(1, len(found) + 1))
    assert found[-1]["count"] == 49
    assert job.processed()["outputs"] == len(found)
    for earlier, later in itertools.pairwise(found):
        assert later["before"] == earlier["count"]
    assert _row(tmp_path) == (49, found[-1]["before"], len(found))


@pytest.mark.promise("state-commit-fails-failbatch")
@pytest.mark.parametrize("how", ["fail", "raise", "die"])
def test_a_commit_that_fails_is_tried_again(job: Job, tmp_path: Path, how: str) -> None:
    """Whatever ends a committer's `finish_batch`: the batch is there once, in state and topic."""
    job = job.running_topology(bolts.global_count(tmp_path), retry_delay="10 ms")
    (tmp_path / how).touch()
    job.produce(event(T0 + n, key=f"k{n}") for n in range(30))
    job.run(drain=True)
    assert not (tmp_path / how).exists()
    assert _written(job)[-1]["count"] == 30
    assert _row(tmp_path)[0] == 30


@pytest.mark.promise("state-batch-keeps-failing")
def test_job_stops_while_a_batch_keeps_failing(job: Job, tmp_path: Path) -> None:
    """Between two tries; the next start goes on with the batch."""
    job = job.with_settings(idle_timeout="500 ms")
    job = job.running_topology(bolts.global_count(tmp_path), retry_maximum="100 ms")
    (tmp_path / "fails").touch()
    job.produce(event(T0 + n, key=f"k{n}") for n in range(30))
    with job.running():
        wait_until((tmp_path / "has-failed").exists)
    assert job.released() == []
    (tmp_path / "fails").unlink()
    job.run(drain=True)
    assert _written(job)[-1]["count"] == 30
    assert _row(tmp_path)[0] == 30


@pytest.mark.promise("state-answer-commit-lost")
def test_database_that_is_away_at_the_start_is_waited_for(
    job: Job, tmp_path: Path, make_postgres: Callable[[], PostgresServer]
) -> None:
    """The job starts, and says so; its first batch is committed once the database is there."""
    server = make_postgres()
    job = job.with_settings(idle_timeout="500 ms")
    job = job.running_topology(
        bolts.global_count(tmp_path, url=server.url()), retry_maximum="100 ms"
    )
    steps = Path(urlsplit(job.settings.checkpoint).path, "frontier")
    server.stop()
    job.produce(event(T0 + n, key=f"k{n}") for n in range(30))
    with job.running():
        wait_until(lambda: steps.is_dir() and any(steps.iterdir()))
        server.start()
        wait_until(lambda: len(job.released()) > 0)
    job.run(drain=True)
    assert _written(job)[-1]["count"] == 30
    assert server.sql("SELECT value FROM global_count") == [(30,)]


@pytest.mark.promise("state-postgresql-says-nothing")
def test_job_stops_while_a_commit_waits(
    job: Job, tmp_path: Path, make_postgres: Callable[[], PostgresServer]
) -> None:
    """Before the database gives up to wait for a lock; the next start has the batch once."""
    server = make_postgres()
    job = job.with_settings(idle_timeout="500 ms")
    job = job.running_topology(bolts.global_count(tmp_path, url=server.url()))
    job.produce([event(T0, key="first")])
    job.run(drain=True)
    waiting = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with psycopg.connect(server.url().replace("+psycopg", "")) as stranger:
        stranger.execute("LOCK TABLE sequitur_transactions IN EXCLUSIVE MODE")
        job.produce(event(T0 + 10_000 + n, key=f"k{n}") for n in range(30))
        with job.running():
            wait_until(lambda: server.sql(waiting) == [(True,)])
        assert "lock timeout" not in server.said()
        stranger.rollback()
    job.run(drain=True)
    assert _written(job)[-1]["count"] == 31
    assert server.sql("SELECT value FROM global_count") == [(31,)]


@pytest.mark.promise("state-database-checkpoint-lost")
def test_new_checkpoint_is_refused_by_the_database(job: Job, tmp_path: Path) -> None:
    job = job.running_topology(bolts.global_count(tmp_path))
    job.produce(event(T0 + n, key=f"k{n}") for n in range(30))
    job.run(drain=True)
    other = job.with_settings(
        checkpoint=f"{job.settings.checkpoint}-2",
        app=f"{job.settings.app}-2",
        output_topic=f"{job.settings.output_topic}-2",
    )
    with pytest.raises(StateOwnerError, match="belongs to checkpoint"):
        other.run(drain=True)
    assert _row(tmp_path)[0] == 30


@pytest.mark.promise("state-database-checkpoint-lost")
def test_older_copy_of_a_checkpoint_is_refused_by_the_database(job: Job, tmp_path: Path) -> None:
    """Though it is one transaction older only, and no topic tells that it is."""
    job = job.running_topology(bolts.global_count(tmp_path, is_told=False))
    checkpoint, copy = Path(urlsplit(job.settings.checkpoint).path), tmp_path / "copy"
    job.produce(event(T0 + n, key=f"k{n}") for n in range(30))
    job.run(drain=True)
    shutil.copytree(checkpoint, copy)
    transactions = _row(tmp_path)[2]
    job.produce([event(T0 + 60_000, key="a")])
    job.run(drain=True)
    assert _row(tmp_path) == (31, 30, transactions + 1)
    shutil.rmtree(checkpoint)
    shutil.copytree(copy, checkpoint)
    job.produce([event(T0 + 70_000, key="b"), event(T0 + 70_001, key="c")])
    with pytest.raises(TopologyTaskError, match="with another batch than the checkpoint"):
        job.run(drain=True)
    assert _row(tmp_path) == (31, 30, transactions + 1)


@pytest.mark.promise("state-event-fails-batch")
def test_failed_event_is_taken_out_of_its_batch(job: Job, tmp_path: Path) -> None:
    """The batch is committed without it; it is in that of a later try, or dead-lettered."""
    job = job.running_topology(bolts.global_count(tmp_path), retry_delay="10 ms", max_attempts=3)
    job.produce(event(T0 + n, key=f"k{n}") for n in range(30))
    job.produce([event(T0 + 5, key="again", fails=2), event(T0 + 6, key="never", fails=99)])
    job.run(drain=True)
    found = _written(job)
    assert found[-1]["count"] == 31
    assert _row(tmp_path)[::2] == (31, len(found))
    assert len(job.dead_letters()) == 1
    counts = job.processed()
    assert (counts["acked"], counts["dead"], counts["pending"]) == (31, 1, 0)


@pytest.mark.promise("state-later-batches-processed")
@pytest.mark.parametrize("how", [None, "fail"])
def test_later_batches_are_processed_beside_a_commit(
    job: Job, tmp_path: Path, how: str | None
) -> None:
    """While the first is held in its commit; commits come in the order of ids all the same.

    If that commit fails then, those behind it are processed again, and each is there once.
    """
    topology = bolts.global_count(tmp_path, holds_first_until=4)
    job = job.with_settings(max_offsets_per_trigger=10).running_topology(
        topology, max_batches_pending=4, call_timeout="5 min", retry_delay="10 ms"
    )
    if how is not None:
        (tmp_path / how).touch()
    job.produce(event(T0 + 100 * n, key=f"k{n}") for n in range(100))
    job.run(drain=True)
    found = _written(job)
    assert len(found) >= 4
    assert [one["number"] for one in found] == list(range(1, len(found) + 1))
    assert found[-1]["count"] == 100
    assert job.processed()["outputs"] == len(found)
    assert not [one for one in threading.enumerate() if one.name == "ahead"]
    committed = [int(line) for line in (tmp_path / "commits").read_text().split()]
    assert committed == sorted(committed)
    assert _row(tmp_path)[::2] == (100, len(found))


class _DeathError(Exception):
    """Stands for the end of the driver."""


def _dies_in_commit(
    job: Job, monkeypatch: pytest.MonkeyPatch, before: Callable[[], None] = lambda: None
) -> None:
    """Run a life of the job that ends when its first step is prepared."""

    def run(_: CommitRun) -> None:
        before()
        raise _DeathError

    with monkeypatch.context() as patched:
        patched.setattr(CommitRun, "run", run)
        with pytest.raises(_DeathError):
            job.run(drain=True)


def test_what_an_older_life_discards_late_is_prepared_still(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A life commits what it has written down itself: half of that may be in databases already.

    The older one, whose own try at the commit failed, was paused before it discards its batch.
    """
    job = job.running_topology(bolts.global_count(tmp_path))
    job.produce(event(T0 + n, key=f"k{n}") for n in range(30))
    _dies_in_commit(job, monkeypatch)
    (first,) = (tmp_path / "checkpoint" / "prepared").iterdir()
    _dies_in_commit(job, monkeypatch, first.unlink)
    with monkeypatch.context() as patched:
        patched.delattr(ProcessingRun, "run")  # the batch may not be made anew
        job.run(available_now=True)
    job.run(drain=True)
    assert _written(job)[-1]["count"] == 30
    assert _row(tmp_path)[0] == 30


@pytest.mark.promise("state-version-changed-step")
def test_a_prepared_step_of_fb84216_goes_on(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its database: attempts had other numbers then."""
    job = job.running_topology(bolts.global_count(tmp_path))
    job.produce([event(T0, key="first")])
    job.run(drain=True)
    job.produce(event(T0 + 10_000 + n, key=f"k{n}") for n in range(30))
    _dies_in_commit(job, monkeypatch)
    make_prepared_old(tmp_path / "checkpoint", tmp_path / "state.db")
    with monkeypatch.context() as patched:
        patched.delattr(ProcessingRun, "run")  # the batch may not be made anew
        job.run(available_now=True)
    job.run(drain=True)
    assert _written(job)[-1]["count"] == 31
    assert _row(tmp_path)[0] == 31


def test_prepared_step_is_not_given_to_a_plain_topology(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the first: its transaction may be in a database in part."""
    job = job.running_topology(bolts.global_count(tmp_path))
    job.produce(event(T0 + n, key=f"k{n}") for n in range(30))
    _dies_in_commit(job, monkeypatch)
    builder = TopologyBuilder("global-count")
    builder.set_spout("events")
    builder.set_bolt("split", plain_bolts.Split()).shuffle_grouping("events")
    with pytest.raises(TopologyFileError, match="prepared and not committed everywhere"):
        job.running_topology(builder.build()).run(drain=True)
    job.run(drain=True)
    assert _row(tmp_path)[0] == 30
