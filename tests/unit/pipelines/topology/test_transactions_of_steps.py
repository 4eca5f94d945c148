"""A transactional topology behind the reorder stage; on Spark: tests/spark/test_transactions.py."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import TopologyBuilder
from sequitur.consumer.topology.step.transaction_run import CommitRun, ProcessingRun
from sequitur.errors import CheckpointError, StateOwnerError, TopologyFileError
from sequitur.pipelines.ordering.step import Steps
from sequitur.pipelines.store.checkpoint import Checkpoint
from sequitur.pipelines.topology.transactions import Transactions
from tests.spark import bolts as plain_bolts
from tests.spark import transactional_bolts as bolts
from tests.support.events import T0, event

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sequitur.consumer.topology.step.run import StepResult
    from tests.support.list_job import ListJob


@pytest.mark.promise("state-event-fails-batch")
def test_failed_event_is_taken_out_of_its_batch(job: ListJob, tmp_path: Path) -> None:
    """The batch is committed without it; it is in that of a later try, or dead-lettered."""
    job = job.running_topology(bolts.global_count(tmp_path), retry_delay="10 ms", max_attempts=3)
    job.produce(event(T0 + n, key=f"k{n}") for n in range(30))
    job.produce([event(T0 + 5, key="again", fails=2), event(T0 + 6, key="never", fails=99)])
    job.run(drain=True)
    found = bolts.written(job)
    assert found[-1]["count"] == 31
    assert bolts.count_in(tmp_path)[::2] == (31, len(found))
    assert len(job.dead_letters()) == 1
    counts = job.processed()
    assert (counts["acked"], counts["dead"], counts["pending"]) == (31, 1, 0)


@pytest.mark.promise("state-database-checkpoint-lost")
def test_new_checkpoint_is_refused_by_the_database(job: ListJob, tmp_path: Path) -> None:
    job = job.running_topology(bolts.global_count(tmp_path))
    job.produce(event(T0 + n, key=f"k{n}") for n in range(30))
    job.run(drain=True)
    other = job.anew().running_topology(bolts.global_count(tmp_path))
    other.produce([event(T0)])
    with pytest.raises(StateOwnerError, match="belongs to checkpoint"):
        other.run(drain=True)
    assert bolts.count_in(tmp_path)[0] == 30


class _DeathError(Exception):
    """Stands for the end of the driver."""


def _dies_in_commit(
    job: ListJob, monkeypatch: pytest.MonkeyPatch, before: Callable[[], None] = lambda: None
) -> None:
    """Run a life of the job that ends when its first step is prepared."""

    def run(_: CommitRun) -> None:
        before()
        raise _DeathError

    with monkeypatch.context() as patched:
        patched.setattr(CommitRun, "run", run)
        with pytest.raises(_DeathError):
            job.run(drain=True)


def _goes_on_with_what_was_prepared(
    job: ListJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the next life, which may not make the batch anew; all 30 events are counted once."""
    with monkeypatch.context() as patched:
        patched.delattr(ProcessingRun, "run")
        job.run()
    job.run(drain=True)
    assert bolts.written(job)[-1]["count"] == 30
    assert bolts.count_in(tmp_path)[0] == 30


def test_what_an_older_life_discards_late_is_prepared_still(
    job: ListJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A life commits what it has written down itself: half of that may be in databases already.

    The older one, whose own try at the commit failed, was paused before it discards its batch.
    """
    job = job.running_topology(bolts.global_count(tmp_path))
    job.produce(event(T0 + n, key=f"k{n}") for n in range(30))
    _dies_in_commit(job, monkeypatch)
    (first,) = (job.folder / "prepared").iterdir()
    _dies_in_commit(job, monkeypatch, first.unlink)
    _goes_on_with_what_was_prepared(job, tmp_path, monkeypatch)


def test_what_an_older_life_prepares_until_databases_refuse_it_is_committed(
    job: ListJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have begun to commit that, so a look before then would miss it."""
    job = job.running_topology(bolts.global_count(tmp_path))
    job.produce(event(T0 + n, key=f"k{n}") for n in range(30))
    _dies_in_commit(job, monkeypatch)
    (path,) = (job.folder / "prepared").iterdir()
    aside = path.rename(tmp_path / "aside")
    telling = Transactions._outlast_databases

    def tell(transactions: Transactions) -> None:
        if aside.exists():
            aside.rename(path)
        telling(transactions)

    with monkeypatch.context() as patched:
        patched.setattr(Transactions, "_outlast_databases", tell)
        _goes_on_with_what_was_prepared(job, tmp_path, patched)
    assert not aside.exists()


@pytest.mark.parametrize(
    ("dies_in", "of"),
    [
        pytest.param("write_processed", Checkpoint, id="committed, and not written down"),
        pytest.param("_write", Steps, id="written down, and nothing is out"),
    ],
)
def test_a_step_is_processed_by_one_life(
    job: ListJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_in: str, of: type
) -> None:
    """The next one goes on with what was prepared, and then with what became of it."""
    committing, going_on = CommitRun.run, getattr(of, dies_in)
    committed: list[CommitRun] = []

    def commit(run: CommitRun) -> StepResult:
        committed.append(run)
        return committing(run)

    def dies(*args: Any, **options: Any) -> Any:
        if committed:
            raise _DeathError
        return going_on(*args, **options)

    job = job.running_topology(bolts.global_count(tmp_path))
    job.produce(event(T0 + n, key=f"k{n}") for n in range(30))
    with monkeypatch.context() as patched:
        patched.setattr(CommitRun, "run", commit)
        patched.setattr(of, dies_in, dies)
        with pytest.raises(_DeathError):
            job.run(drain=True)
    assert bolts.count_in(tmp_path)[0] == 30
    _goes_on_with_what_was_prepared(job, tmp_path, monkeypatch)


@pytest.mark.promise("state-version-changed-step")
def test_a_prepared_step_of_an_older_version_ends_the_job_and_nothing_is_committed(
    job: ListJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job.running_topology(bolts.global_count(tmp_path))
    job.produce(event(T0 + n, key=f"k{n}") for n in range(30))
    _dies_in_commit(job, monkeypatch)
    (path,) = (job.folder / "prepared").iterdir()
    today = path.read_text()
    path.write_text(json.dumps({**json.loads(today), "prepared_format": 1}))
    old = path.read_bytes()
    with pytest.raises(CheckpointError, match=f"{path} cannot be read: prepared step of format 1"):
        job.run(drain=True)
    assert path.read_bytes() == old
    assert not bolts.written(job)
    path.write_text(today)
    job.run(drain=True)
    assert bolts.count_in(tmp_path)[0] == 30


def test_prepared_step_is_not_given_to_a_plain_topology(
    job: ListJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    assert bolts.count_in(tmp_path)[0] == 30


@pytest.mark.promise("state-commit-fails-failbatch")
@pytest.mark.parametrize("how", ["fail", "raise"])
def test_a_commit_that_fails_is_tried_again(job: ListJob, tmp_path: Path, how: str) -> None:
    """Whatever ends a committer's `finish_batch`: the batch is there once, in state and topic."""
    job = job.running_topology(bolts.global_count(tmp_path), retry_delay="10 ms")
    (tmp_path / how).touch()
    job.produce(event(T0 + n, key=f"k{n}") for n in range(30))
    job.run(drain=True)
    assert not (tmp_path / how).exists()
    assert bolts.written(job)[-1]["count"] == 30
    assert bolts.count_in(tmp_path)[0] == 30
