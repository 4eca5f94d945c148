"""How many processes run tasks by default."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from sequitur.pipelines.local.cores import cores
from sequitur.pipelines.local.workers import ProcessWorkers

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("groups", "files", "allowed"),
    [
        ("", {}, 16),
        ("0::/", {"cpu.max": "max 100000"}, 16),
        ("0::/", {"cpu.max": "200000 100000"}, 2),
        ("0::/", {"cpu.max": "150000 100000"}, 2),
        ("0::/", {"cpu.max": "1000 100000"}, 1),
        ("0::/", {"cpu.max": "9900000 100000"}, 16),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3),
        (
            "3:cpu,cpuacct:/docker/1",
            {"cpu,cpuacct/cpu.cfs_quota_us": "400000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            4,
        ),
        (
            "3:cpu,cpuacct:/",
            {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            16,
        ),
    ],
)
def test_affinity_and_each_cgroup_limit_the_cores(
    groups: str,
    files: dict[str, str],
    allowed: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    mount, own = tmp_path / "mount", tmp_path / "own"
    own.write_text(groups)
    for name, text in files.items():
        (mount / name).parent.mkdir(parents=True, exist_ok=True)
        (mount / name).write_text(f"{text}\n")
    assert cores(mount, own) == allowed


def test_where_there_are_no_cgroups_the_affinity_counts(tmp_path: Path) -> None:
    assert cores(tmp_path, tmp_path / "none") == len(os.sched_getaffinity(0))


def test_there_is_a_process_for_each_core_unless_a_number_is_given() -> None:
    assert ProcessWorkers().parallelism == cores()
    assert ProcessWorkers(3).parallelism == 3
    assert ProcessWorkers(3).master == "local[3]"
