"""The files by which a job moves between the local runner and Spark, held against Spark's own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from sequitur.errors import CheckpointError, OwnershipError
from sequitur.kafka.partition import SourcePartition
from sequitur.pipelines.local.plan_log import PlanLog
from sequitur.pipelines.store.spark_part import SparkPart
from sequitur.pipelines.store.storage import LocalStorage
from tests.support.spark_files import (
    CLOCK_AND_SETTINGS,
    COMMIT,
    METADATA,
    PLAN,
    SOURCE,
    write_with_checksum,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_PARTITIONS = [SourcePartition("readings", number) for number in range(4)]
_BEGINS = dict.fromkeys(_PARTITIONS, 0)
_ENDS = dict(zip(_PARTITIONS, (1000, 2000, 0, 0), strict=True))
_LATER = {where: end + 1 for where, end in _ENDS.items()}


def _opened(root: Path, check_owner: Callable[[], None] | None = None) -> PlanLog:
    storage = LocalStorage(root)

    def sweep(names: Sequence[str]) -> None:
        for name in names:
            storage.delete(name)

    return PlanLog(storage, SparkPart(storage), "spark", check_owner or (lambda: None), sweep)


def _by_spark(root: Path, *, is_committed: bool = True) -> None:
    """What Spark leaves after its first batch, or in the middle of it."""
    files = {"metadata": METADATA, "sources/0/0": SOURCE, "offsets/0": PLAN}
    if is_committed:
        files["commits/0"] = COMMIT
    for name, text in files.items():
        write_with_checksum(root / "spark", name, text)


def _run(log: PlanLog, ends: Mapping[SourcePartition, int]) -> None:
    log.plan(ends)
    log.commit()


@pytest.mark.promise("order-runner-changes-between")
def test_files_are_sparks_but_for_its_id_its_clock_and_its_settings(tmp_path: Path) -> None:
    log = _opened(tmp_path)
    assert log.begin(_BEGINS) == _BEGINS
    _run(log, _ENDS)
    spark = tmp_path / "spark"
    found = {str(path.relative_to(spark)) for path in spark.rglob("*") if path.is_file()}
    assert found == {"metadata", "sources/0/0", "offsets/0", "commits/0"}
    assert json.loads((spark / "metadata").read_text()).keys() == json.loads(METADATA).keys()
    assert (spark / "sources/0/0").read_text() == SOURCE
    assert (spark / "commits/0").read_text() == COMMIT
    version, metadata, ends = (spark / "offsets/0").read_text().split("\n")
    assert (version, ends) == (PLAN.split("\n")[0], PLAN.split("\n")[2])
    assert json.loads(metadata).keys() == json.loads(CLOCK_AND_SETTINGS).keys()


@pytest.mark.promise("order-runner-changes-between")
def test_what_spark_keeps_of_its_clock_and_settings_is_handed_on(tmp_path: Path) -> None:
    _by_spark(tmp_path)
    (tmp_path / "spark/commits/0").write_text('v1\n{"nextBatchWatermarkMs":77}')
    log = _opened(tmp_path)
    assert log.newest is not None
    assert (log.newest.batch_id, log.newest.ends, log.newest.is_committed) == (0, _ENDS, True)
    _run(log, _LATER)
    assert (tmp_path / "spark/offsets/1").read_text().split("\n")[1] == CLOCK_AND_SETTINGS
    assert (tmp_path / "spark/commits/1").read_text() == 'v1\n{"nextBatchWatermarkMs":77}'
    assert (tmp_path / "spark/metadata").read_text() == METADATA


@pytest.mark.promise("order-runner-changes-between")
def test_batch_that_spark_has_planned_is_run_as_planned(tmp_path: Path) -> None:
    _by_spark(tmp_path, is_committed=False)
    newest = _opened(tmp_path).newest
    assert newest is not None
    assert (newest.batch_id, newest.ends, newest.is_committed) == (0, _ENDS, False)


def test_log_is_taken_up_wherever_its_owner_has_died(tmp_path: Path) -> None:
    """Between any two files; each start writes what is missing, and nothing over what is there."""
    first = _opened(tmp_path)
    assert first.newest is None
    first.begin(_BEGINS)
    kept = (tmp_path / "spark/metadata").read_text()
    second = _opened(tmp_path)
    assert second.newest is None
    assert second.begin(_LATER) == _BEGINS
    second.plan(_ENDS)
    third = _opened(tmp_path)
    assert third.newest is not None
    assert not third.newest.is_committed
    third.commit()
    fourth = _opened(tmp_path)
    assert fourth.newest is not None
    assert fourth.newest.is_committed
    (tmp_path / "spark/metadata").unlink()
    assert _opened(tmp_path).newest == fourth.newest
    assert json.loads((tmp_path / "spark/metadata").read_text()).keys() == json.loads(kept).keys()


def test_a_hundred_plans_are_kept_and_checksums_go_with_their_files(tmp_path: Path) -> None:
    _by_spark(tmp_path)
    log = _opened(tmp_path)
    for number in range(1, 131):
        _run(log, {**_ENDS, _PARTITIONS[3]: number})
    for folder in ("offsets", "commits"):
        left = sorted(int(path.name) for path in (tmp_path / "spark" / folder).iterdir())
        assert left == [*range(30, 131)]
    for number in range(10):  # those of a life that has died while it deleted
        write_with_checksum(tmp_path / "spark", f"offsets/{number}", PLAN)
    _opened(tmp_path)
    assert not [*(tmp_path / "spark/offsets").glob(".*")]


def test_checksum_that_a_power_cut_left_is_not_taken_for_that_of_a_new_file(tmp_path: Path) -> None:
    _by_spark(tmp_path)
    for name in ("offsets/1", "commits/1"):
        write_with_checksum(tmp_path / "spark", name, "lost")
        (tmp_path / "spark" / name).unlink()
    _run(_opened(tmp_path), _LATER)
    assert not (tmp_path / "spark/offsets/.1.crc").exists()
    assert not (tmp_path / "spark/commits/.1.crc").exists()


@pytest.mark.promise("order-older-driver-goes")
def test_older_owner_plans_nothing(tmp_path: Path) -> None:
    """Neither where it looks again, nor where it is stopped after its look, and woken up later."""

    def refuse() -> None:
        raise OwnershipError("another process has taken it over")

    log = _opened(tmp_path)
    log.begin(_BEGINS)
    woken = _opened(tmp_path)
    _run(log, _ENDS)
    with pytest.raises(OwnershipError):
        _opened(tmp_path, refuse).plan(_LATER)
    # It has looked, and finds the file that the newer owner has written.
    assert woken.plan(_LATER).ends == _ENDS
    assert (tmp_path / "spark/offsets/0").read_text().endswith(PLAN.split("\n")[2])


def test_plan_that_an_older_owner_wrote_last_is_run_as_planned(tmp_path: Path) -> None:
    """It was stopped between its look and the file, which reads the same offsets once."""
    newer = _opened(tmp_path)
    newer.begin(_BEGINS)
    _run(newer, _ENDS)
    _opened(tmp_path).plan(_LATER)
    assert newer.plan({where: end + 5 for where, end in _ENDS.items()}).ends == _LATER


@pytest.mark.parametrize("version", ["v2", "", "v1 "])
def test_plan_of_another_format_is_refused(tmp_path: Path, version: str) -> None:
    _by_spark(tmp_path)
    (tmp_path / "spark/offsets/0").write_text(PLAN.replace("v1", version, 1))
    with pytest.raises(CheckpointError, match=r"spark/offsets/0 has the format .* runner = "):
        _opened(tmp_path)


def test_plans_of_ones_own_are_not_read_until_a_life_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody writes over a plan; what stands there when a life begins is read."""
    storage, read = LocalStorage(tmp_path), []
    spark = SparkPart(storage)
    read_text = storage.read

    def counted(name: str) -> str:
        read.append(name)
        return read_text(name)

    monkeypatch.setattr(storage, "read", counted)
    log = PlanLog(storage, spark, "spark", lambda: None, lambda _: None)
    log.begin(_BEGINS)
    for _ in range(2):
        _run(log, _ENDS)
        _run(log, _LATER)
    assert spark.planned_offsets("spark", 2) == _ENDS
    assert spark.planned_offsets("spark", 3) == _LATER
    assert not read
    assert spark.planned_offsets("spark", 1) == _LATER
    spark.forget_unfinished("spark", 3)
    read.clear()
    assert spark.planned_offsets("spark", 3) == _LATER
    assert read == ["spark/offsets/3"]
