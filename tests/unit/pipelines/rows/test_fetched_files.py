"""Files of an object store that tasks read: each small one is fetched once in a process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sequitur.pipelines.rows import row_files, run_rows
from sequitur.pipelines.rows.run_rows import Part, RunRows
from sequitur.pipelines.store.part_files import KeptValues, PartFile

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

_SCHEMA = pa.schema([("offset", pa.int64()), ("event_time_ms", pa.int64())])


@dataclass(frozen=True)
class _Far:
    """A file that is far away, as far as readers go.

    Attributes:
        file: Where it is.
        opened: How often each was opened.
    """

    file: Path
    opened: dict[Path, int] = field(default_factory=dict, compare=False, hash=False)

    def __str__(self) -> str:
        return str(self.file)

    @property
    def parent(self) -> Path:
        return self.file.parent

    def open_input(self) -> pa.NativeFile:
        self.opened[self.file] = self.opened.get(self.file, 0) + 1
        return pa.OSFile(str(self.file), "rb")


def _files(folder: Path, count: int) -> tuple[tuple[Any, ...], dict[Path, int]]:
    """Files of one row each, and how often each is opened from now on."""
    opened: dict[Path, int] = {}
    found: list[Any] = []
    for number in range(count):
        with PartFile(folder, _SCHEMA) as file:
            file.write(pa.table([[number], [number]], schema=_SCHEMA))
        found.append(_Far(folder / (file.name or ""), opened))
    return tuple(found), opened


def _read(files: tuple[Any, ...]) -> list[int]:
    pieces = RunRows((Part(files, reasons=()),), None, ("offset",)).pieces()
    return [offset for piece in pieces for offset in piece["offset"].to_pylist()]


def test_small_file_is_fetched_once(tmp_path: Path) -> None:
    """With its footer, and however often it is read; rows come in the order of the files."""
    files, opened = _files(tmp_path, 20)
    for _ in range(5):
        assert _read(files) == [*range(20)]
    assert [*opened.values()] == [1] * 20


def test_large_file_is_read_by_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not kept: its footer is read once, and the rows each time."""
    monkeypatch.setattr(row_files, "_SMALL_BYTES", 100)
    files, opened = _files(tmp_path, 1)
    for _ in range(3):
        assert _read(files) == [0]
    assert [*opened.values()] == [4]


def test_what_is_kept_of_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go, and are fetched again; here files are read one after the other."""
    one = ThreadPoolExecutor(1)
    for module in (row_files, run_rows):
        monkeypatch.setattr(module, "readers", lambda: one)
    files, opened = _files(tmp_path, 20)
    size = files[0].file.stat().st_size
    monkeypatch.setattr(row_files, "_fetched", KeptValues(4 * size))
    assert _read(files) == [*range(20)]
    opened.clear()
    assert _read(files[-3:]) == [17, 18, 19]
    assert not opened
    assert _read(files[:3]) == [0, 1, 2]
    assert [*opened.values()] == [1] * 3
    one.shutdown()
