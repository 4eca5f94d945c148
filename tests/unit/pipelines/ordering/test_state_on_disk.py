"""The job's state is plain Parquet and JSON, which other tools read."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd

from sequitur.consumer.reorder.key_state import FoldLimits
from sequitur.pipelines.ordering.inspection import inspect_checkpoint
from tests.support.events import T0, event

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.list_job import ListJob


def _names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir())


def _two_steps(job: ListJob) -> None:
    """The first run is through and folded, the second holds four rows."""
    job.fold_limits = FoldLimits(runs=1)
    job.produce([event(T0 + t, key=k, partition=0) for k, t in (("a", 1), ("a", 3), ("b", 2))])
    job.run(drain=True)
    job.produce([event(T0 + 9000 + p, key="c", partition=p) for p in range(4)])
    job.run()


def test_pandas_reads_runs_and_keys(job: ListJob) -> None:
    """As docs/inside/checkpoint.md shows it: held rows, and how far each key is released."""
    _two_steps(job)
    checkpoint = job.folder
    for file in [*checkpoint.glob("runs/*/*.parquet"), *checkpoint.glob("keys/*/*.parquet")]:
        # What a task leaves that was given up counts for nothing.
        shutil.copy(file, file.with_name("part-of-a-task-given-up.parquet"))
    found = inspect_checkpoint(str(checkpoint)).as_json()

    def rows(folder: str, named: list[dict[str, Any]]) -> pd.DataFrame:
        files = [f"{folder}/{one['name']}/{file}" for one in named for file in one["files"]]
        return pd.concat(pd.read_parquet(f"{checkpoint}/{file}") for file in files)

    runs = rows("runs", found["runs"])
    held = runs[runs["event_time_ms"] > found["frontier_ms"]]
    assert sorted(held["event_time_ms"] - T0) == [9000, 9001, 9002, 9003]
    assert set(held["key"]) == {b"c"}
    last = rows("keys", found["folds"]).groupby("key")["event_time_ms"].max() - T0
    assert last.to_dict() == {b"a": 3, b"b": 2}


def test_duckdb_reads_runs_and_keys(job: ListJob) -> None:
    """As docs/inside/checkpoint.md shows it, in SQL; the log of steps, too."""
    _two_steps(job)
    checkpoint = job.folder
    held = duckdb.execute(
        f"SELECT topic, partition, count(*), min(event_time_ms) - {T0}"
        f" FROM '{checkpoint}/runs/*/*.parquet' GROUP BY ALL ORDER BY ALL"
    )
    assert held.fetchall() == [(job.topic, p, 1, 9000 + p) for p in range(4)]
    keys = duckdb.execute(
        f"SELECT decode(key), max(event_time_ms) - {T0}"
        f" FROM '{checkpoint}/keys/*/*.parquet' GROUP BY key ORDER BY key"
    )
    assert keys.fetchall() == [("a", 3), ("b", 2)]
    log = duckdb.execute(
        f"SELECT step, kind, staged.read FROM read_json_auto('{checkpoint}/frontier/0*')"
        " ORDER BY step"
    )
    assert log.fetchall() == [(0, "batch", 3), (1, "drain", 0), (2, "batch", 4)]


def test_old_state_is_removed(job: ListJob) -> None:
    """Runs go when they are folded, folds when merged or past their TTL, verdicts when used."""
    job.fold_limits = FoldLimits(runs=2)
    job = job.with_settings(key_ttl="20 s", late_policy="drop")
    checkpoint = job.folder
    for life in range(7):
        start = T0 + 3000 * life
        job.produce([event(start + p, key=f"k{p}", partition=p) for p in range(4)])
        job.produce([event(start - 2500, key=f"k{life % 4}")])
        job.run()
        # One that is held, one that waits to be folded.
        assert len(_names(checkpoint / "runs")) <= 3
        assert len(_names(checkpoint / "keys")) <= 1
        assert len(_names(checkpoint / "behind")) <= 1
    assert len(_names(checkpoint / "keys")) == 1
    job.produce([event(T0 + 60_000, key="new", partition=p) for p in range(4)])
    job.run()
    job.produce([event(T0 + 90_000, key="new", partition=p) for p in range(4)])
    job.run(drain=True)
    job.produce([event(T0 + 90_001, key="new", partition=p) for p in range(4)])
    job.run(drain=True)
    assert job.report is not None
    entry, _ = job.steps[-1]
    assert entry.keys is not None
    assert entry.keys.horizon_ms == T0 + 70_000
    for run in (checkpoint / "keys").iterdir():
        assert set(pd.read_parquet(run)["key"]) <= {b"new"}
