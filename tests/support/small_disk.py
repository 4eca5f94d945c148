"""A disk of a few MiB, mounted for a test, and filled by it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE_BYTES: Final = 4096
"""A file takes its disk by pages of so many bytes."""


@contextlib.contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """Mount a disk of this size at a place that is not there yet; skip where none may be."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    place.mkdir(mode=0o700)
    mounting = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)],
        check=False,
        capture_output=True,
        text=True,
    )
    if mounting.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounting.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@contextlib.contextmanager
def filled(disk: Path, *, but_for: int) -> Iterator[None]:
    """Take all of a disk, but for so many pages, for as long as the block runs."""
    ballast, free = disk / ".ballast", shutil.disk_usage(disk).free
    ballast.write_bytes(bytes(max(0, free - but_for * PAGE_BYTES)))
    try:
        yield
    finally:
        ballast.unlink()
