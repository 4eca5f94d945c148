"""`sequitur reorder inspect`: what a checkpoint holds, read without Spark."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from sequitur.base.stored import dump
from sequitur.cli.main import app
from sequitur.consumer.reorder.clock import EventClock
from sequitur.consumer.reorder.key_state import Fold, KeyState
from sequitur.consumer.reorder.learned_delay import LearnedDelays, StepLateness
from sequitur.consumer.reorder.sorted_run import Run
from sequitur.consumer.reorder.step_log import StagedStep, StepDone, StepEntry, StepKind, Totals
from sequitur.errors import CheckpointError
from sequitur.kafka.partition import SourcePartition
from sequitur.pipelines.ordering.inspection import inspect_checkpoint
from sequitur.pipelines.store.checkpoint import PARTITIONS_DOCUMENT, OutputPartitions
from sequitur.pipelines.store.job_identity import CHECKPOINT_FORMAT
from sequitur.pipelines.store.run_files import RunFiles

if TYPE_CHECKING:
    from pathlib import Path

A = SourcePartition("readings", 0)
T0 = 1_700_000_000_000
_RUN = "000000000001-000001-0"
_JOB = {
    "format": CHECKPOINT_FORMAT,
    "kind": "sequitur-reorder",
    "input_topics": ["readings"],
    "input_pattern": None,
    "event_time": "json:at",
    "output_topic": "ordered",
    "output_partitions": 4,
}


def _entry(step: int, **changes: Any) -> StepEntry:
    clock = EventClock().observe(
        A, max_event_time_ms=T0 + 5000, position=8, high_watermark=11, now_ms=0
    )
    values: dict[str, Any] = {
        "step": step,
        "kind": StepKind.BATCH,
        "batch_id": step,
        "previous_frontier_ms": T0,
        "clock": clock.advance(now_ms=0, delay_ms=3000, idle_timeout_ms=1000),
        "counts": Totals(read=4, late=1),
        "runs": (Run(step, 3, T0 + 1000, T0 + 5000, name=_RUN, files={"part-0.parquet": 3}),),
        "before": Totals(read=4, released=4),
        "logged_ms": T0,
    }
    return StepEntry(**{**values, **changes})


def _write_entry(root: Path, entry: StepEntry) -> None:
    path = root / "frontier" / f"{entry.step:012d}"
    path.write_text(json.dumps(dump(entry)))
    (path.parent / f".{path.name}.crc").write_bytes(b"crc")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkpoint of two steps; the run of the second holds two rows and has one that is late."""
    root = tmp_path / "checkpoint"
    for folder in ("frontier", "done", f"runs/{_RUN}", "spark"):
        (root / folder).mkdir(parents=True)
    (root / "format.json").write_text(json.dumps(_JOB))
    for step in (0, 1):
        _write_entry(root, _entry(step))
        done = StepDone(step, Totals(read=4 * (step + 1), released=5, late=step), seconds=0.5)
        (root / "done" / f"{step:012d}").write_text(json.dumps(dump(done)))
    rows = pa.table(
        {
            "event_time_ms": pa.array([T0 - 1, T0 + 1000, T0 + 3000, T0 + 5000], pa.int64()),
            "reason": pa.array(["late", None, None, None], pa.string()),
        }
    )
    pq.write_table(rows, root / "runs" / _RUN / "part-0.parquet")
    files = dump(RunFiles(_entry(1).runs[0].files))
    (root / "runs" / _RUN / "files.json").write_text(json.dumps(files))
    pq.write_table(rows, root / "runs" / _RUN / "part-of-a-task-given-up.parquet")
    (root / "runs" / _RUN / "_SUCCESS").touch()
    (root / "runs" / _RUN / ".part-0.parquet.crc").touch()
    return root


def test_it_shows_frontier_clocks_held_rows_and_totals(root: Path) -> None:
    """All that a running job would tell, and the rows that each run still holds."""
    found = inspect_checkpoint(str(root)).as_json()
    assert found["job"]["output_topic"] == "ordered"
    assert found["frontier_ms"] == T0 + 2000
    assert found["totals"]["held"] == 2
    (run,) = found["runs"]
    assert (run["step"], run["rows"], run["held"]) == (1, 3, 2)
    assert run["size_bytes"] > 0
    (clock,) = found["partitions"]
    assert (clock["position"], clock["high_watermark"], clock["was_idle"]) == (8, 11, False)
    assert (clock["delay_ms"], clock["max_event_time_ms"]) == (3000, T0 + 5000)
    assert [(step["step"], step["done"], step["seconds"]) for step in found["steps"]] == [
        (0, True, 0.5),
        (1, True, 0.5),
    ]
    assert found["keys"] == {"files": 0, "rows": 0, "size_bytes": 0}
    assert found["learned"] is None


def test_steps_that_are_staged_are_shown(root: Path) -> None:
    """Read, and not among the counts yet; those of steps that are logged are not shown again."""
    (root / "staged").mkdir()
    assert inspect_checkpoint(str(root)).as_json()["staged"] == []
    for step in (1, 2, 3):
        entry = _entry(step)
        staged = StagedStep(
            step=step,
            kind=entry.kind,
            batch_id=step,
            previous_frontier_ms=T0,
            clock=entry.clock,
            counts=entry.counts,
            run=entry.runs[0],
        )
        path = root / "staged" / f"{step:012d}"
        path.write_text(json.dumps(dump(staged)))
    found = inspect_checkpoint(str(root)).as_json()
    assert found["staged"] == [{"step": 2, "read": 4}, {"step": 3, "read": 4}]
    assert found["totals"]["read"] == 8


def test_a_step_cut_short_holds_all_that_it_staged(root: Path) -> None:
    """A step that is logged and not done has released nothing of its run."""
    (root / "done" / "000000000001").unlink()
    report = inspect_checkpoint(str(root))
    assert [found.held for found in report.runs] == [3]
    assert [done is None for _, done in report.steps] == [False, True]
    assert report.as_json()["steps"][-1] == {"step": 1, "kind": "batch", "done": False}


def test_keys_and_learned_delay_are_shown(root: Path) -> None:
    fold = Fold(1, keys=2, size_bytes=9, max_event_time_ms=T0, name=_RUN, files={"named": 2})
    (root / "keys" / _RUN).mkdir(parents=True)
    for name in ("named", "part-of-a-task-given-up.parquet"):
        pq.write_table(pa.table({"key": [b"a", b"b"]}), root / "keys" / _RUN / name)
    learned = LearnedDelays(late_target=0.01).learn(
        A, StepLateness(rows=200, late=1), reached_ms=T0, half_life_ms=1000, is_backlog=False
    )
    _write_entry(root, _entry(1, learned=learned, keys=KeyState(folds=(fold,))))
    found = inspect_checkpoint(root.as_uri()).as_json()
    assert (found["keys"]["files"], found["keys"]["rows"]) == (1, 2)
    assert [(one["name"], one["files"]) for one in found["folds"]] == [(_RUN, {"named": 2})]
    assert found["learned"] == {
        "late_target": 0.01,
        "late_share": 0.005,
        "recent_late_share": 0.005,
    }


def test_a_fresh_checkpoint_is_shown(root: Path) -> None:
    """Before the first step there is a job, and nothing else."""
    for folder in ("frontier", "done"):
        for path in (root / folder).iterdir():
            path.unlink()
    found = inspect_checkpoint(f"file:{root}").as_json()
    assert (found["frontier_ms"], found["totals"]["read"], found["steps"]) == (-1, 0, [])


@pytest.mark.promise("order-checkpoint-job-version", "order-sequitur-reorder-inspect")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 99}, "has format 99, this version reads"),
        ({"kind": "other"}, "is not a reorder job's"),
    ],
)
def test_foreign_or_newer_checkpoint_is_refused(
    root: Path, changes: dict[str, Any], message: str
) -> None:
    """What another program or a newer version wrote is named, and not guessed at."""
    (root / "format.json").write_text(json.dumps({**_JOB, **changes}))
    with pytest.raises(CheckpointError, match=message):
        inspect_checkpoint(str(root))


@pytest.mark.promise("order-sequitur-reorder-inspect")
def test_newer_step_is_refused(root: Path) -> None:
    (root / "frontier" / "000000000001").write_text(json.dumps({"format": 99}))
    with pytest.raises(CheckpointError, match="step of format 99"):
        inspect_checkpoint(str(root))


@pytest.mark.promise("order-sequitur-reorder-inspect")
def test_run_that_vanishes_while_it_is_read_is_told(root: Path) -> None:
    """A running job removes runs that are through: then another look is wanted."""
    (root / "runs" / _RUN / "part-0.parquet").unlink()
    (root / "runs" / _RUN / "part-of-a-task-given-up.parquet").unlink()
    (root / "runs" / _RUN / "_SUCCESS").unlink()
    (root / "runs" / _RUN / ".part-0.parquet.crc").unlink()
    (root / "runs" / _RUN / "files.json").unlink()
    (root / "runs" / _RUN).rmdir()
    with pytest.raises(CheckpointError, match="changed while it was read"):
        inspect_checkpoint(str(root))


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("/no/such/folder", "is not a reorder job's checkpoint"),
        (
            "abc://bucket/folder",
            "this command opens only local paths and stores that it reaches without Spark",
        ),
    ],
)
def test_what_cannot_be_read_is_named(location: str, message: str) -> None:
    """A folder that is not there, and a file system that needs Spark, are said to be so."""
    with pytest.raises(CheckpointError, match=message):
        inspect_checkpoint(location)


@pytest.mark.promise("order-output-topic-gains")
def test_it_says_how_many_output_partitions_stay_empty(root: Path) -> None:
    """As the last start that found some has noted it; a note that is damaged is named."""
    runner = CliRunner()
    shown = runner.invoke(app, ["reorder", "inspect", str(root)])
    assert "empty partitions" not in shown.stdout
    note = root / PARTITIONS_DOCUMENT
    note.write_text(json.dumps(dump(OutputPartitions(4, 6))))
    shown = runner.invoke(app, ["reorder", "inspect", str(root)])
    assert re.search("empty partitions .*2, which the topic gained", shown.stdout)
    note.write_text("{}")
    with pytest.raises(CheckpointError, match=f"{note} cannot be read: .* of format None"):
        inspect_checkpoint(str(root))


def test_command_prints_tables_or_json(root: Path) -> None:
    """For people tables, for programs JSON; neither asks for the job's settings."""
    runner = CliRunner()
    shown = runner.invoke(app, ["reorder", "inspect", str(root)])
    assert shown.exit_code == 0, shown.output
    for word in ("Clocks", "Runs", "Last steps", "2023-11-14 22:13:22", "live"):
        assert word in shown.output
    printed = runner.invoke(app, ["reorder", "inspect", str(root), "--json"])
    assert json.loads(printed.output) == inspect_checkpoint(str(root)).as_json()


def test_what_the_command_prints_adds_up(root: Path) -> None:
    totals = Totals(
        read=70, released=20, late=5, quarantined={"missing": 2}, duplicates=3, skipped=11
    )
    done = StepDone(1, totals, seconds=0.5)
    (root / "done" / "000000000001").write_text(json.dumps(dump(done)))
    shown = CliRunner().invoke(app, ["reorder", "inspect", str(root)]).output
    rows = dict(re.findall(r"(\w+) +│ +(\d+)", shown))
    parts = ("released", "late", "quarantined", "duplicates", "skipped", "held")
    assert int(rows["read"]) == sum(int(rows[one]) for one in parts) > int(rows["skipped"]) == 11


def test_job_needs_no_name_of_its_own() -> None:
    """`sequitur reorder FLAGS` is the job: its flags are in the help, and wrong ones told."""
    runner = CliRunner()
    shown = runner.invoke(app, ["reorder", "--help"], env={"COLUMNS": "200"})
    assert "--idle-timeout" in shown.output
    assert " inspect " in shown.output
    wrong = runner.invoke(app, ["reorder", "--delay", "soon"])
    assert wrong.exit_code == 2
    assert "reorder.delay = 'soon'" in wrong.output
