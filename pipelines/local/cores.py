"""How many cores this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOUNT: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")


def cores(mount: Path = _MOUNT, own: Path = _OWN) -> int:
    """Return how many cores the affinity and the cgroups of this process allow, at least one.

    Args:
        mount: Where the cgroups are mounted.
        own: The file that names the cgroups of this process.
    """
    return max(1, min([len(os.sched_getaffinity(0)), *map(math.ceil, _quotas(mount, own))]))


def _quotas(mount: Path, own: Path) -> Iterator[float]:
    """Yield the cores that each cgroup around this process allows, if it sets a limit."""
    lines = own.read_text().splitlines() if own.exists() else []
    for controllers, path in (line.split(":", 2)[1:] for line in lines):
        # Version 2 has one tree, without a name. A container may see the path of its host in
        # version 1, and its own cgroup at the root of the tree.
        tree, group = mount / controllers, Path(path.lstrip("/"))
        for folder in (tree / group, *(tree / parent for parent in group.parents)):
            quota, period = _limit(folder)
            if quota > 0 and period > 0:
                yield quota / period


def _limit(folder: Path) -> tuple[int, int]:
    """Return quota and period of a cgroup's processor time in microseconds; 0 without a limit."""
    try:
        if (file := folder / "cpu.max").exists():
            quota, period = file.read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        return int(quota), int(period)
    except (OSError, ValueError):  # "max"
        return 0, 0
