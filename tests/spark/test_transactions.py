"""A transactional topology on a real broker and real Spark, with a database."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psycopg
import pytest

from sequitur.errors import TopologyTaskError
from tests.spark import transactional_bolts as bolts
from tests.support.events import T0, event
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.spark.conftest import Job
    from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.spark


@pytest.mark.promise("state-commit-fails-failbatch")
def test_a_commit_whose_process_dies_is_tried_again(job: Job, tmp_path: Path) -> None:
    job = job.running_topology(bolts.global_count(tmp_path), retry_delay="10 ms")
    (tmp_path / "die").touch()
    job.produce(event(T0 + n, key=f"k{n}") for n in range(30))
    job.run(drain=True)
    assert not (tmp_path / "die").exists()
    assert bolts.written(job)[-1]["count"] == 30
    assert bolts.count_in(tmp_path)[0] == 30


@pytest.mark.test_all
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
    assert bolts.written(job)[-1]["count"] == 30
    assert server.sql("SELECT value FROM global_count") == [(30,)]


@pytest.mark.test_all
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
    assert bolts.written(job)[-1]["count"] == 31
    assert server.sql("SELECT value FROM global_count") == [(31,)]


@pytest.mark.test_all
@pytest.mark.promise("state-database-checkpoint-lost")
def test_older_copy_of_a_checkpoint_is_refused_by_the_database(job: Job, tmp_path: Path) -> None:
    """Though it is one transaction older only, and no topic tells that it is."""
    job = job.running_topology(bolts.global_count(tmp_path, is_told=False))
    checkpoint, copy = Path(urlsplit(job.settings.checkpoint).path), tmp_path / "copy"
    job.produce(event(T0 + n, key=f"k{n}") for n in range(30))
    job.run(drain=True)
    shutil.copytree(checkpoint, copy)
    transactions = bolts.count_in(tmp_path)[2]
    job.produce([event(T0 + 60_000, key="a")])
    job.run(drain=True)
    assert bolts.count_in(tmp_path) == (31, 30, transactions + 1)
    shutil.rmtree(checkpoint)
    shutil.copytree(copy, checkpoint)
    job.produce([event(T0 + 70_000, key="b"), event(T0 + 70_001, key="c")])
    with pytest.raises(TopologyTaskError, match="with another batch than the checkpoint"):
        job.run(drain=True)
    assert bolts.count_in(tmp_path) == (31, 30, transactions + 1)


@pytest.mark.test_all
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
    found = bolts.written(job)
    assert len(found) >= 4
    assert [one["number"] for one in found] == list(range(1, len(found) + 1))
    assert found[-1]["count"] == 100
    assert job.processed()["outputs"] == len(found)
    assert not [one for one in threading.enumerate() if one.name == "ahead"]
    committed = [int(line) for line in (tmp_path / "commits").read_text().split()]
    assert committed == sorted(committed)
    assert bolts.count_in(tmp_path)[::2] == (100, len(found))
