"""A checkpoint on a local path: what stands in it whenever somebody dies, or comes too late."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import shutil
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.base.stored import dump, load
from sequitur.consumer.reorder import parse_event_time_spec
from sequitur.consumer.reorder.event_time import identity_of
from sequitur.consumer.reorder.key_state import Fold, KeyState
from sequitur.consumer.reorder.step_log import StepDone, StepEntry, StepKind, Totals
from sequitur.errors import CheckpointError, OwnershipError
from sequitur.kafka.identity import Identity
from sequitur.kafka.partition import SourcePartition
from sequitur.pipelines.local.plan_log import PlanLog
from sequitur.pipelines.rows.run_rows import Part, RunRows
from sequitur.pipelines.sink.step_plans import IdentityOwner, StepPlan
from sequitur.pipelines.store import durable
from sequitur.pipelines.store.checkpoint import Checkpoint
from sequitur.pipelines.store.job_identity import NO_FORMER_JOB, SubscribedJob, check_identity
from sequitur.pipelines.store.ownership import Ownership
from sequitur.pipelines.store.part_files import KeptValues
from sequitur.pipelines.store.storage import LocalStorage
from tests.support.checkpoints import (
    IDENTITY,
    ROWS,
    claimed,
    log_step,
    spark_plan,
    staged_step,
    step_entry,
)
from tests.support.disk_model import DiskModel
from tests.support.golden import golden_document
from tests.support.parquet_files import parquet_files
from tests.support.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sequitur.consumer.reorder.sorted_run import Run

_PLAN = 'v1\n{}\n{"in":{"0":1}}'


@pytest.fixture
def take_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes takes whoever is there for dead."""
    monkeypatch.setattr("sequitur.pipelines.store.ownership.refuse_if_owned", lambda *_, **__: None)


def _rows_of(checkpoint: Checkpoint, run: Run) -> int:
    folder = checkpoint.location(f"runs/{run.name}")
    assert isinstance(folder, Path)
    pieces = RunRows((Part(parquet_files(folder), reasons=()),), None, ("offset",)).pieces()
    return sum(len(rows) for rows in pieces)


@pytest.mark.promise("order-job-killed-makes")
def test_claim_that_is_cut_short_anywhere_is_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much of the folder a killed start has made, the next one goes on with it."""

    class Killed(Exception):  # noqa: N818 - it stands for a kill
        pass

    def dying_at(place: int) -> type[LocalStorage]:
        calls = itertools.count()

        class Dying(LocalStorage):
            def make_folder(self, name: str) -> None:
                if next(calls) == place:
                    raise Killed
                super().make_folder(name)

            def create(self, name: str, *how: Any, **named: Any) -> bool:
                if next(calls) == place:
                    raise Killed
                return super().create(name, *how, **named)

        return Dying

    for place in itertools.count():
        root = tmp_path / str(place)
        try:
            cut = Checkpoint(dying_at(place)(root))
            cut.claim(IDENTITY)
        except Killed:
            claimed(root).close()
        else:
            cut.close()
            break
    assert place > 10
    del monkeypatch


@pytest.mark.promise("order-second-job-started")
def test_folder_that_another_start_claims_meanwhile_is_no_other_jobs(tmp_path: Path) -> None:
    """Of two jobs that are started at once one says of the other that it has the checkpoint."""

    class Late(LocalStorage):
        def names(self, folder: str) -> list[str]:
            if not folder:
                first.append(claimed(tmp_path))
            return super().names(folder)

    first: list[Checkpoint] = []
    with pytest.raises(OwnershipError, match="has this checkpoint"):
        Checkpoint(Late(tmp_path)).claim(IDENTITY)
    first[0].close()


@pytest.mark.promise("order-older-driver-goes")
@pytest.mark.usefixtures("take_over")
def test_what_fails_for_another_owner_is_told_as_that(tmp_path: Path) -> None:
    """What the newer one has deleted looks as if it were lost, and nobody is to go after it."""
    refused = Checkpoint(LocalStorage(tmp_path))
    with pytest.raises(CheckpointError, match="is gone"), refused.while_owned():
        raise CheckpointError("a run is gone")
    older = claimed(tmp_path)
    with pytest.raises(CheckpointError, match="is gone"), older.while_owned():
        raise CheckpointError("a run is gone")
    newer = claimed(tmp_path)
    with pytest.raises(OwnershipError, match="taken this checkpoint over"), older.while_owned():
        raise CheckpointError("a run is gone")
    older.close()
    newer.close()


@pytest.mark.promise("order-checkpoint-deleted")
def test_folder_that_is_gone_is_named_with_the_way_out(tmp_path: Path) -> None:
    """Whatever file was missed first, and whoever has the folder."""
    folder = tmp_path / "state"
    job = claimed(folder)

    def miss_a_file() -> None:
        with job.while_owned():
            (folder / "runs" / "1").read_bytes()

    with pytest.raises(FileNotFoundError):
        miss_a_file()
    kept = folder.rename(tmp_path / "kept")
    with pytest.raises(CheckpointError, match=r"state was deleted or moved while .* Put it back"):
        miss_a_file()
    kept.rename(folder)
    with pytest.raises(FileNotFoundError):
        miss_a_file()
    job.close()


@pytest.mark.promise("order-checkpoint-deleted")
def test_folder_that_is_being_deleted_is_named(tmp_path: Path) -> None:
    """Its first documents are gone, and the last ones are still there."""
    folder = tmp_path / "state"
    job = claimed(folder)
    shutil.rmtree(folder / "staged")
    rest = threading.Timer(0.2, shutil.rmtree, [folder])
    rest.start()
    with pytest.raises(CheckpointError, match="was deleted or moved") as raised, job.while_owned():
        job.write_document("staged/1", {})
    assert isinstance(raised.value.__cause__, FileNotFoundError)
    rest.join()
    job.close()


@pytest.mark.promise("order-checkpoint-job-version")
def test_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(CheckpointError, match="holds something else"):
        claimed(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.promise("order-document-names-run", "order-file-rows-held")
def test_run_or_fold_whose_file_is_lost_is_refused(tmp_path: Path) -> None:
    """By name and with the rows that it had, whatever other runs hold; one that came to it is not.

    A task that was given up may leave it at any time, and nobody is told its name.
    """
    checkpoint = claimed(tmp_path)
    first = step_entry(checkpoint, 0)
    entry = step_entry(checkpoint, 1, first.runs)
    checkpoint.write_entry(first)
    checkpoint.write_entry(entry)
    assert checkpoint.latest()[0] == entry
    (kept,) = parquet_files(tmp_path / "runs" / first.name)
    fold = Fold(1, len(ROWS), 1, 9, name="fold", files={"part-0.parquet": len(ROWS)})
    entry = replace(entry, keys=KeyState(folds=(fold,)))
    (tmp_path / "keys" / "fold").mkdir()
    shutil.copy(kept, tmp_path / "keys" / "fold" / "part-0.parquet")
    checkpoint.check_whole(entry, is_done=False)
    files = checkpoint.files(*entry.runs[:1], fold)
    assert [*files] == [kept, tmp_path / "keys" / "fold" / "part-0.parquet"]
    for lost in (Path(kept), tmp_path / "keys" / "fold" / "part-0.parquet"):
        aside = lost.rename(tmp_path / "aside")
        for is_done in (False, True):
            with pytest.raises(CheckpointError, match=rf"{lost}, with 30 rows .* is gone. .* 1 of"):
                checkpoint.check_whole(entry, is_done=is_done)
        with pytest.raises(CheckpointError, match=f"{lost}, with 30 rows"):
            checkpoint.check_files(*entry.runs, fold)
        shutil.copy(aside, lost.with_name("part-of-another.parquet"))
        shutil.copy(aside, lost)
        checkpoint.check_whole(entry, is_done=False)
        assert checkpoint.files(*entry.runs[:1], fold) == files
        lost.with_name("part-of-another.parquet").unlink()
    (tmp_path / "runs" / first.name / "files.json").unlink()
    with pytest.raises(CheckpointError, match=rf"{first.name}/files\.json, which .* 30 rows"):
        checkpoint.latest()
    shutil.rmtree(tmp_path / "runs" / first.name)
    with pytest.raises(CheckpointError, match="is gone"):
        checkpoint.check_whole(entry, is_done=True)
    checkpoint.close()


@pytest.mark.promise("order-checkpoint-job-version")
@pytest.mark.parametrize("document", [golden_document("format.json"), {"format": 5}])
def test_older_format_is_refused_with_the_way_to_go_on(
    tmp_path: Path, document: dict[str, Any]
) -> None:
    written = json.dumps({"kind": "sequitur-reorder", **document})
    (tmp_path / "format.json").write_text(written)
    refused = rf"{tmp_path} has format {document['format']}, this version reads 7: let the version"
    with pytest.raises(CheckpointError, match=refused):
        claimed(tmp_path)
    assert (tmp_path / "format.json").read_text() == written
    assert _names(tmp_path) == ["format.json"]


def _step_of_format(step: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda document: {**document, "format": step}


def _clock_of_format_1(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "clock": {"format": 1, "frontier_ms": 0, "seen_ms": 0, "partitions": []}}


def _grown(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "partition_counts": [[4, 100], [6, None]]}


@pytest.mark.promise("order-checkpoint-written-version", "order-output-topic-gains")
@pytest.mark.parametrize(
    ("folder", "change", "what"),
    [
        *(
            (folder, _step_of_format(number), f"step of format {number}, this version reads 7")
            for folder in ("staged", "frontier", "done")
            for number in (5, 6)
        ),
        ("staged", _clock_of_format_1, "clock of format 1, this version reads 2"),
        ("frontier", _clock_of_format_1, "clock of format 1, this version reads 2"),
        ("staged", _grown, "the output topic has gained .* 100 go by 4 partitions and .* by 6, .*"),
        ("frontier", _grown, "the output topic has gained .* by 4 partitions and .* by 6, .*"),
    ],
)
def test_step_of_an_older_form_is_refused_and_left_as_it_is(
    tmp_path: Path, folder: str, change: Callable[[dict[str, Any]], dict[str, Any]], what: str
) -> None:
    first = claimed(tmp_path)
    log_step(first, step_entry(first, 0))
    first.write_done(StepDone(0, Totals()))
    first.write_staged(staged_step(step_entry(first, 1)))
    first.close()
    path = max((tmp_path / folder).iterdir())
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    before = {one: one.read_bytes() for one in tmp_path.rglob("0*") if one.is_file()}
    second = Checkpoint(LocalStorage(tmp_path))
    refused = rf"{path} cannot be read: {what}: let the version that wrote it release .*--drain"

    def start() -> None:
        with contextlib.closing(second):
            second.claim(IDENTITY)
            second.staged(second.latest()[0])

    with pytest.raises(CheckpointError, match=refused):
        start()
    assert {one: one.read_bytes() for one in before if one.exists()} == before


@pytest.mark.promise("order-older-driver-goes")
@pytest.mark.usefixtures("take_over")
def test_older_life_logs_nothing_any_more(tmp_path: Path) -> None:
    """Whatever it wants to write down, it is told by name who has the checkpoint now."""
    older, newer = claimed(tmp_path), claimed(tmp_path)
    entry = step_entry(older, 0)
    logging: list[Callable[[], None]] = [
        lambda: older.write_staged(staged_step(entry)),
        lambda: older.write_entry(entry),
        lambda: older.write_done(StepDone(0, Totals())),
        lambda: older.write_processed(0, {}, written=None, kept=()),
        lambda: older.write_document("delivery.json", {}),
    ]
    for log in logging:
        with pytest.raises(
            OwnershipError, match=r"host .*, process \d+, has taken this checkpoint"
        ):
            log()
    assert newer.latest()[0] is None
    newer.write_entry(step_entry(newer, 0))
    older.close()
    newer.close()


@pytest.mark.promise("order-older-driver-goes")
@pytest.mark.usefixtures("take_over")
def test_of_two_lives_one_logs_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the older one has just looked, and seen no newer one."""
    older, newer = claimed(tmp_path), claimed(tmp_path)
    monkeypatch.setattr(older, "check_owner", lambda **_: None)
    won, lost = step_entry(older, 0), step_entry(newer, 0)
    older.write_entry(won)
    with pytest.raises(OwnershipError, match="was still at work"):
        newer.write_entry(lost)
    assert newer.latest()[0] == won
    assert _rows_of(newer, won.runs[0]) == len(ROWS)
    older.close()
    newer.close()


@pytest.mark.promise("order-older-driver-goes")
@pytest.mark.usefixtures("take_over")
def test_of_two_lives_one_stages_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number is one life's, whether its step reads a batch or is a tick."""
    older, newer = claimed(tmp_path), claimed(tmp_path)
    monkeypatch.setattr(older, "check_owner", lambda **_: None)
    won = staged_step(step_entry(older, 0))
    older.write_staged(won)
    with pytest.raises(OwnershipError, match="staged/000000000000 is there already"):
        newer.write_staged(replace(staged_step(step_entry(newer, 0)), kind=StepKind.TICK))
    assert newer.staged(None) == (won,)
    older.close()
    newer.close()


@pytest.mark.promise("order-older-driver-goes")
@pytest.mark.usefixtures("take_over")
def test_life_that_is_taken_over_while_a_disk_syncs_logs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow disk takes longer than a process that stands still is left the checkpoint."""
    older = claimed(tmp_path)
    newer: list[Checkpoint] = []
    syncing = durable.sync

    def slow(path: Path) -> None:
        if not newer and path.match("staged/.*"):
            newer.append(Checkpoint(LocalStorage(tmp_path)))
            newer[0].claim(IDENTITY)
        syncing(path)

    monkeypatch.setattr(durable, "sync", slow)
    with pytest.raises(OwnershipError, match="has taken this checkpoint over"):
        older.write_document(f"staged/{0:012d}", {})
    assert [*(tmp_path / "staged").iterdir()] == []
    older.close()
    newer[0].close()


@pytest.mark.usefixtures("take_over")
def test_log_that_goes_on_while_it_is_read_is_not_taken_for_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A life that is overtaken may be at work while the next one reads, and put it off for once."""
    older, newer = claimed(tmp_path), claimed(tmp_path)
    monkeypatch.setattr(older, "check_owner", lambda **_: None)
    entry = step_entry(older, 0)
    names = newer._storage.names

    def names_before_the_log_goes_on(folder: str) -> list[str]:
        found = names(folder)
        if not names("done"):
            older.write_entry(entry)
            older.write_done(StepDone(0, Totals()))
        return found

    monkeypatch.setattr(newer._storage, "names", names_before_the_log_goes_on)
    assert newer.latest() == (entry, StepDone(-1, entry.before, stamped_ms=entry.logged_ms))
    monkeypatch.undo()
    assert newer.latest()[1].step == 0
    older.close()
    newer.close()


@pytest.mark.promise("order-next-batch-read")
def test_staged_steps_behind_a_gap_are_refused(tmp_path: Path) -> None:
    """A step whose document is lost is not passed over."""
    checkpoint = claimed(tmp_path)
    entries = [step_entry(checkpoint, step) for step in range(3)]
    for entry in entries:
        checkpoint.write_staged(staged_step(entry))
    assert [one.step for one in checkpoint.staged(None)] == [0, 1, 2]
    assert [one.step for one in checkpoint.staged(entries[0])] == [1, 2]
    (tmp_path / "staged" / f"{1:012d}").unlink()
    assert [one.step for one in checkpoint.staged(entries[1])] == [2]
    with pytest.raises(CheckpointError, match=r"step 2 is staged, but the last in frontier/ is 0"):
        checkpoint.staged(entries[0])
    checkpoint.close()


@pytest.mark.promise("order-older-driver-goes")
@pytest.mark.usefixtures("take_over")
def test_older_life_deletes_nothing_of_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paused between its entry and its deletions, it wakes up when the newer one has gone on."""
    older = claimed(tmp_path)
    first = step_entry(older, 0)
    keep, asked = older._sweeper.keep, []
    monkeypatch.setattr(
        older._sweeper, "keep", lambda *given, **named: asked.append((given, named))
    )
    older.write_entry(first)
    newer = claimed(tmp_path)
    reset = replace(step_entry(newer, 1, first.runs), kind=StepKind.RESET)
    reset = replace(reset, source=f"spark-{reset.name}")
    (tmp_path / reset.source).mkdir()
    newer.write_entry(reset)
    written = newer.new_name(1)
    (tmp_path / "topology" / written).mkdir()
    newer.write_processed(1, {}, written=written, kept=())
    for given, named in asked:
        keep(*given, **named)
    keep(1, {"topology": ()})
    assert [_rows_of(newer, run) for run in reset.runs] == [len(ROWS)] * 2
    assert (tmp_path / reset.source).exists()
    assert (tmp_path / "topology" / written).exists()
    older.close()
    newer.close()


@pytest.mark.promise("order-older-driver-goes")
def test_what_no_step_needs_is_deleted_once_the_entry_stands(tmp_path: Path) -> None:
    """Runs that are through, what an attempt has left that came to nothing, older Spark folders."""
    checkpoint = claimed(tmp_path)
    orphan, first = step_entry(checkpoint, 0), step_entry(checkpoint, 0)
    checkpoint.write_entry(first)
    assert _names(tmp_path / "runs") == [first.name]
    second = step_entry(checkpoint, 1)
    held = KeptValues[str](1_000)
    folders = [tmp_path / "runs" / name for name in (first.name, second.name)]
    for folder in folders:
        held.keep(folder / "part", folder.name, 1)
    assert _names(tmp_path / "runs") == [first.name, second.name]
    ahead = step_entry(checkpoint, 2)
    (tmp_path / "spark").mkdir()
    second = replace(second, source=f"spark-{second.name}")
    (tmp_path / second.source).mkdir()
    checkpoint.write_entry(second)
    assert _names(tmp_path / "runs") == [second.name, ahead.name]  # staged behind it
    assert [held.get(folder / "part") for folder in folders] == [None, second.name]
    assert _names(tmp_path, "spark*") == [second.source]
    assert orphan.name != first.name
    checkpoint.close()


def _names(folder: Path, pattern: str = "*") -> list[str]:
    return sorted(path.name for path in folder.glob(pattern))


@pytest.mark.promise("order-job-ends-spark")
@pytest.mark.parametrize(
    ("offsets", "is_kept"),
    [
        ([], False),
        ([".0.5f.tmp", ".metadata.crc"], False),
        (["0", ".0.crc", ".1.5f.tmp"], True),
    ],
)
def test_spark_folder_without_a_plan_is_forgotten(
    tmp_path: Path, offsets: list[str], is_kept: bool
) -> None:
    """Spark refuses one in which the first plan was begun and not ended; a plan is never lost."""
    checkpoint = claimed(tmp_path)
    checkpoint.spark.forget_unfinished("spark", -1)
    planned = tmp_path / "spark" / "offsets"
    planned.mkdir(parents=True)
    (tmp_path / "spark" / "metadata").write_text("{}")
    for name in offsets:
        (planned / name).write_text(_PLAN)
    checkpoint.spark.forget_unfinished("spark", -1)
    assert (tmp_path / "spark").exists() is is_kept
    assert _names(planned, "*") == (sorted(offsets) if is_kept else [])


@pytest.mark.promise("order-power-cut-leaves")
@pytest.mark.parametrize("left", ["", "v1\n", "v1\n{}\n", 'v1\n{}\n{"in":{"0":1'])
def test_newest_plan_that_a_power_cut_left_short_is_made_anew(tmp_path: Path, left: str) -> None:
    """Spark would end at it at every start. One that is in the log is refused, with the way on."""
    checkpoint = claimed(tmp_path)
    spark_plan(tmp_path, 1)
    offsets = tmp_path / "spark" / "offsets"
    (offsets / "0").write_text(_PLAN)
    for name in ("1", ".1.crc"):
        (offsets / name).write_text(left)
    with pytest.raises(CheckpointError, match=r"offsets/1, .* cannot be read: .*--reset-input"):
        checkpoint.spark.planned_offsets("spark", 1)
    checkpoint.spark.forget_unfinished("spark", 1)
    assert _names(offsets) == [".1.crc", "0", "1"]
    checkpoint.spark.forget_unfinished("spark", 0)
    assert _names(offsets) == ["0"]
    (offsets / "0").write_text(left)
    checkpoint.spark.forget_unfinished("spark", -1)
    assert not (tmp_path / "spark").exists()
    checkpoint.close()


@pytest.mark.promise("order-power-cut-leaves")
@pytest.mark.parametrize("left", ["", "v1\n", "v1\n{"])
def test_newest_commit_that_a_power_cut_left_short_is_forgotten(tmp_path: Path, left: str) -> None:
    """Its batch is in the log, and known when Spark gives it again; whole ones are left alone."""
    checkpoint = claimed(tmp_path)
    spark_plan(tmp_path, 2)
    commits = tmp_path / "spark" / "commits"
    for number in (0, 1):
        (commits / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    checkpoint.spark.forget_unfinished("spark", 1)
    assert _names(commits) == ["0", "1"]
    for name in ("1", ".1.crc"):
        (commits / name).write_text(left)
    checkpoint.spark.forget_unfinished("spark", 1)
    assert _names(commits) == ["0"]
    checkpoint.close()


@pytest.mark.promise("order-document-checkpoint-empty")
@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"{}", b"null", b'{"format": 0}', b"\xff"])
@pytest.mark.parametrize(
    "name",
    [
        "format.json",
        "outputs.json",
        "subscription.json",
        "frontier/000000000000",
        "plans/000000000000",
        "done/000000000000",
    ],
)
def test_damaged_document_is_refused_by_its_path(tmp_path: Path, name: str, damage: bytes) -> None:
    """Empty, cut, or other JSON: never with a raw error."""
    first = claimed(tmp_path)
    first.write_document("outputs.json", dump(IdentityOwner("a", None)))
    first.write_document("subscription.json", dump(SubscribedJob("s", "a", NO_FORMER_JOB)))
    first.write_document("plans/000000000000", dump(StepPlan(0, None, Identity(7, 0), {})))
    first.write_entry(step_entry(first, 0))
    first.write_done(StepDone(0, Totals()))
    first.close()
    (tmp_path / name).write_bytes(damage)
    found = Checkpoint(LocalStorage(tmp_path))

    def start() -> None:
        with contextlib.closing(found):
            found.claim(IDENTITY)
            assert found.read_document("outputs.json", partial(load, IdentityOwner)) is not None
            subscribed = found.read_document("subscription.json", partial(load, SubscribedJob))
            assert subscribed is not None
            assert found.read_document("plans/000000000000", partial(load, StepPlan)) is not None
            found.latest()

    with pytest.raises(CheckpointError, match=rf"{tmp_path}(/{name} cannot be read| is not a reo)"):
        start()


@pytest.mark.promise("order-document-checkpoint-empty")
@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", "null"])
@pytest.mark.parametrize("name", ["owners/000000000001", "heartbeats/000000000001"])
def test_damaged_trace_of_an_earlier_life_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, damage: str
) -> None:
    impatient = partial(Ownership, stale_s=0.2)
    monkeypatch.setattr("sequitur.pipelines.store.owned_folder.Ownership", impatient)
    claimed(tmp_path).close()
    (tmp_path / name).write_text(damage)
    second = claimed(tmp_path)
    assert second.owner == 2
    second.close()


@pytest.mark.promise("order-marks-gone-newest")
@pytest.mark.parametrize("left", [[], [0], [0, 1]])
def test_done_marks_that_are_lost_are_known_by_the_newest_entry(
    tmp_path: Path, left: list[int]
) -> None:
    checkpoint = claimed(tmp_path)
    for step in range(3):
        before = Totals(read=len(ROWS) * step)
        checkpoint.write_entry(replace(step_entry(checkpoint, step), before=before, logged_ms=7))
        checkpoint.write_done(StepDone(step, Totals(read=len(ROWS) * (step + 1))))
    for step in {0, 1, 2} - set(left):
        (tmp_path / "done" / f"{step:012d}").unlink()
    entry, done = checkpoint.latest()
    assert entry is not None
    assert (entry.step, done.step, done.totals) == (2, 1, Totals(read=2 * len(ROWS)))
    (tmp_path / "frontier" / f"{2:012d}").unlink()
    for step in (0, 1):
        (tmp_path / "frontier" / f"{step:012d}").unlink()
    if left:
        with pytest.raises(CheckpointError, match=r"the last in frontier/ is -1: .* Put frontier/"):
            checkpoint.latest()
    checkpoint.close()


@pytest.mark.promise("order-frontier-gone-restored")
@pytest.mark.parametrize("trace", ["spark/commits/0", "spark/commits/12", "spark-000000000007-1-0"])
def test_log_that_is_lost_is_refused_where_spark_has_gone_on(tmp_path: Path, trace: str) -> None:
    """Spark's next batch is not taken for the first step; a first batch without a log is."""
    checkpoint = claimed(tmp_path)
    (tmp_path / "spark" / "commits").mkdir(parents=True)
    checkpoint.check_log(None)
    checkpoint.check_log(None, 0)
    with pytest.raises(CheckpointError, match=r"query has got to batch 3, but frontier/ has no"):
        checkpoint.check_log(None, 3)
    (tmp_path / trace).mkdir()
    with pytest.raises(CheckpointError, match=f"query has got to {trace}, but .* Put frontier/"):
        checkpoint.check_log(None)
    checkpoint.check_log(step_entry(checkpoint, 0), 12)
    checkpoint.close()


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DiskModel]:
    (tmp_path / "disk").mkdir()
    with DiskModel(tmp_path / "disk", monkeypatch) as model:
        yield model


@pytest.mark.promise("order-power-cut-checkpoint")
@pytest.mark.parametrize("by_driver", [False, True])
def test_what_is_done_by_a_document_is_done_after_it_lasts(
    tmp_path: Path, disk: DiskModel, *, by_driver: bool
) -> None:
    """At any power cut the newest entry finds its rows, Spark's plan, and what was processed.

    So does the newest staged step, whether a task has synced its rows or the driver has yet to.
    """
    root = tmp_path / "disk" / "checkpoint"
    cuts = itertools.count()
    logged: list[StepEntry] = []

    def after_a_cut() -> Checkpoint:
        left = disk.left(tmp_path / f"left-{next(cuts)}")
        found = Checkpoint(LocalStorage(left / "checkpoint"))
        entry, _ = found.latest()
        assert entry in logged[-2:] or (entry is None and len(logged) < 2)
        if entry is not None:
            assert [_rows_of(found, run) for run in entry.runs] == [len(ROWS)] * len(entry.runs)
            spark = left / "checkpoint" / "spark"
            assert (spark / "offsets" / str(entry.batch_id)).is_file()
            assert entry.batch_id == 0 or (spark / "commits" / str(entry.batch_id - 1)).is_file()
        for one in found.staged(entry):
            assert one.run is not None
            assert one.run.files
            assert _rows_of(found, one.run) == len(ROWS)
            assert (left / "checkpoint" / "spark" / "offsets" / str(one.batch_id)).is_file()
        return found

    checkpoint = claimed(root)
    disk._on_sync = lambda: after_a_cut().close()
    for step in range(3):
        spark_plan(root, step)
        runs = logged[-1].runs if step == 1 else ()
        entry = step_entry(checkpoint, step, runs, keeps=by_driver)
        logged.append(entry)
        checkpoint.write_staged(staged_step(entry), is_run_synced=not by_driver)
        assert after_a_cut().staged(logged[-2] if step else None) == (staged_step(entry),)
        checkpoint.write_entry(entry)
        assert after_a_cut().staged(entry) == ()
        assert after_a_cut().latest()[0] == entry
        name = checkpoint.new_name(step)
        (root / "topology" / name / "outputs").mkdir(parents=True)
        (root / "topology" / name / "outputs" / "part-0").write_text("rows")
        document = {"file": f"topology/{name}/outputs/part-0"}
        checkpoint.write_processed(step, document, written=name, kept=())
        assert after_a_cut().processed(step, lambda found: found["file"]) == document["file"]
        left = tmp_path / f"left-{next(cuts) - 1}" / "checkpoint"
        assert (left / document["file"]).read_text() == "rows"
        checkpoint.write_done(StepDone(step, Totals()))
        assert after_a_cut().latest()[1].step == step
    disk._on_sync = lambda: None
    checkpoint.close()


@pytest.mark.promise("order-power-cut-checkpoint")
def test_what_is_prepared_lasts_with_its_files(tmp_path: Path, disk: DiskModel) -> None:
    """A commit goes by it, and may be half done when the power is cut."""
    root = tmp_path / "disk" / "checkpoint"
    checkpoint = claimed(root)
    name = checkpoint.new_name(0)
    file = f"topology/{name}/inputs/tuples-0"
    (root / file).parent.mkdir(parents=True)
    (root / file).write_text("tuples")
    checkpoint.write_prepared(0, 7, {"file": file}, written=name)
    left = disk.left(tmp_path / "left") / "checkpoint"
    found = Checkpoint(LocalStorage(left))
    assert found.prepared(0, lambda document: document["file"]) == file
    assert (left / file).read_text() == "tuples"
    checkpoint.close()


@pytest.mark.promise("order-power-cut-checkpoint")
def test_local_runner_syncs_its_plans_and_commits_with_the_step_that_rests_on_them(
    tmp_path: Path, disk: DiskModel
) -> None:
    """They are synced once, and no later; the first plan says where the job has begun."""
    root = tmp_path / "disk" / "checkpoint"
    checkpoint = claimed(root)
    log = PlanLog.of(checkpoint, "spark")
    log.begin({SourcePartition("in", 0): 0})
    log.plan({SourcePartition("in", 0): 1})
    assert (disk.left(tmp_path / "begun") / "checkpoint/spark/offsets/0").read_text()
    for step in range(4):
        before = disk.syncs
        if step:
            log.plan({SourcePartition("in", 0): step + 1})
        assert disk.syncs == before
        checkpoint.write_staged(staged_step(step_entry(checkpoint, step)))
        spark = disk.left(tmp_path / f"left-{step}") / "checkpoint" / "spark"
        assert (spark / "offsets" / str(step)).read_text()
        assert not step or (spark / "commits" / str(step - 1)).read_text()
        before = disk.syncs
        log.commit()
        assert disk.syncs == before
    checkpoint.close()


@pytest.mark.promise("order-power-cut-leaves")
@pytest.mark.parametrize("left", [None, "", "v1\n{", "\0" * 40])
def test_plan_of_the_local_runner_that_a_power_cut_took_is_made_anew(
    tmp_path: Path, left: str | None
) -> None:
    """Nothing has come of it, and the commit that it took is made again."""
    checkpoint = claimed(tmp_path)
    log = PlanLog.of(checkpoint, "spark")
    begins = {SourcePartition("in", 0): 0}
    log.begin(begins)
    for step in range(2):
        log.plan({SourcePartition("in", 0): step + 1})
        checkpoint.write_staged(staged_step(step_entry(checkpoint, step)))
        log.commit()
    log.plan({SourcePartition("in", 0): 7})
    for name in ("offsets/2", "commits/1"):
        (tmp_path / "spark" / name).unlink()
        if left is not None:
            (tmp_path / "spark" / name).write_text(left)
    checkpoint.spark.forget_unfinished("spark", 1)
    again = PlanLog.of(checkpoint, "spark")
    assert again.newest is not None
    assert (again.newest.batch_id, again.newest.is_committed) == (1, False)
    again.commit()
    assert again.plan({SourcePartition("in", 0): 8}).batch_id == 2
    assert PlanLog.of(checkpoint, "spark").newest == again.newest
    assert checkpoint.spark.begins("spark") == begins
    checkpoint.close()


@pytest.mark.promise("order-batch-fit-checkpoint")
def test_rows_that_the_disk_has_no_room_for_go_with_their_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may tell only as they are synced; what a document names stays."""
    checkpoint = claimed(tmp_path)
    entry = step_entry(checkpoint, 0, keeps=True)
    syncing = durable.sync

    def full(path: Path) -> None:
        if path.match(unfit):
            raise OSError(errno.ENOSPC, "No space left on device")
        syncing(path)

    monkeypatch.setattr(durable, "sync", full)
    unfit = "runs/*/part-*"
    with pytest.raises(OSError, match=r"No space left on device: .*/runs/.*/part-"):
        checkpoint.write_staged(staged_step(entry), is_run_synced=False)
    assert _names(tmp_path / "runs") == []
    entry = step_entry(checkpoint, 0, keeps=True)
    unfit = "staged"
    with pytest.raises(OSError, match="No space left on device"):
        checkpoint.write_staged(staged_step(entry), is_run_synced=False)
    assert _names(tmp_path / "staged") == [f"{0:012d}"]
    assert _rows_of(checkpoint, entry.runs[-1]) == len(ROWS)
    checkpoint.close()


@pytest.mark.promise("order-batch-fit-checkpoint")
@pytest.mark.usefixtures("take_over")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("folder", ["staged", "frontier"])
def test_rows_go_only_where_their_document_is_surely_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, code: int
) -> None:
    """NFS may make a name, lose the answer, and show the name later."""
    older = claimed(tmp_path)
    entry = step_entry(older, 0, keeps=True)
    texts: list[str] = []
    linking = Path.hardlink_to

    def failing(path: Path, written: Path) -> None:
        if path.parent.name == folder:
            texts.append(written.read_text())
            raise OSError(code, "failed")
        linking(path, written)

    log: Callable[[], None] = partial(older.write_staged, staged_step(entry), is_run_synced=False)
    if folder == "frontier":
        log()
        log = partial(older.write_entry, entry)
        older.new_folder(f"behind/{entry.name}")
    with monkeypatch.context() as disk:
        disk.setattr(Path, "hardlink_to", failing)
        with pytest.raises(OSError, match="failed"):
            log()
    of_attempt = tmp_path / ("runs" if folder == "staged" else "behind") / entry.name
    assert of_attempt.exists() == (code not in {errno.ENOSPC, errno.EDQUOT})
    newer = claimed(tmp_path)
    if of_attempt.exists():
        (tmp_path / folder / f"{0:012d}").write_text(texts[0])
        found = newer.staged(None) if folder == "staged" else newer.latest()[:1]
        assert found == ((staged_step(entry),) if folder == "staged" else (entry,))
        assert _rows_of(newer, entry.runs[0]) == len(ROWS)
    older.close()
    newer.close()


@pytest.mark.promise("order-power-cut-leaves")
def test_commit_that_was_seen_outlasts_a_power_cut(tmp_path: Path, disk: DiskModel) -> None:
    """Not only once the next step is logged: on a quiet topic that is hours away."""
    root = tmp_path / "disk" / "checkpoint"
    checkpoint = claimed(root)
    spark_plan(root, 0)
    log_step(checkpoint, step_entry(checkpoint, 0))
    checkpoint.write_done(StepDone(0, Totals()))
    spark_plan(root, 1)
    commit = Path("checkpoint", "spark", "commits", "0")
    assert not (disk.left(tmp_path / "before") / commit).is_file()
    checkpoint.spark.make_commit_last("spark", 0)
    assert (disk.left(tmp_path / "behind") / commit).read_text()
    checkpoint.close()


@pytest.mark.promise("order-power-cut-checkpoint")
def test_what_is_deleted_is_named_by_no_document_that_lasts(
    tmp_path: Path, disk: DiskModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion may reach the disk at once, and the entry before it must have."""
    root = tmp_path / "disk" / "checkpoint"
    cuts = itertools.count()
    deleted: list[str] = []
    delete = LocalStorage.delete

    def watched(self: LocalStorage, name: str) -> None:
        left = disk.left(tmp_path / f"left-{next(cuts)}") / "checkpoint"
        entry, _ = Checkpoint(LocalStorage(left)).latest()
        assert entry is not None
        assert name.removeprefix("runs/") not in {run.name for run in entry.runs}
        deleted.append(name)
        delete(self, name)

    checkpoint = claimed(root)
    monkeypatch.setattr(LocalStorage, "delete", watched)
    for step in range(3):
        log_step(checkpoint, step_entry(checkpoint, step))
        checkpoint.write_done(StepDone(step, Totals()))
    assert len(deleted) == 2
    checkpoint.close()


@pytest.mark.promise("order-power-cut-checkpoint")
def test_entry_that_may_not_last_yet_is_made_to(
    tmp_path: Path, disk: DiskModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the sync of a document's folder: the next life acts on it, so it syncs."""
    root = tmp_path / "disk" / "checkpoint"
    first = claimed(root)
    entry = step_entry(first, 0)
    syncing = disk._sync
    monkeypatch.setattr(
        "sequitur.pipelines.store.durable.sync",
        lambda path: None if path == root / "frontier" else syncing(path),
    )
    log_step(first, entry)
    first.close()
    assert Checkpoint(LocalStorage(disk.left(tmp_path / "cut") / "checkpoint")).latest()[0] is None
    monkeypatch.setattr("sequitur.pipelines.store.durable.sync", syncing)
    claimed(root).close()
    left = Checkpoint(LocalStorage(disk.left(tmp_path / "later") / "checkpoint"))
    assert left.latest()[0] == entry


@pytest.mark.promise("field-names-dots")
@pytest.mark.parametrize(
    ("stored", "event_time", "is_same"),
    [
        ("json:a.b", "json:a.b", True),
        ("json:a.b", "json:/a.b", False),
        ("json:a.b", "json:/a/b", False),
        # Before there were pointers a leading slash was one of the first name.
        ("json:/a.b", "json:/a.b", False),
        ("json:/a.b", "json:/~1a/b", True),
        ("json:/a as s", "json:/~1a as s", True),
        ("json:/a as s", "json:/a as s", False),
        ("json-pointer:/a.b", "json:/a.b", True),
        ("json-pointer:/a.b as s", "json:/a.b as s", True),
        ("json-pointer:/a.b as s", "json:/a.b", False),
    ],
)
def test_no_checkpoint_changes_the_meaning_of_its_event_time(
    stored: str, event_time: str, is_same: bool
) -> None:
    """A spelling that has another meaning now is refused, and the one with its meaning is taken."""
    found = dump(replace(IDENTITY, event_time=stored))
    wanted = replace(IDENTITY, event_time=identity_of(parse_event_time_spec(event_time)))
    with (
        contextlib.nullcontext() if is_same else pytest.raises(CheckpointError, match="event_time")
    ):
        check_identity("here", found, dump(wanted))
