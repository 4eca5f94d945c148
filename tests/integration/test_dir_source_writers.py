"""A folder whose writer acts at any moment: between any two steps of reading and renaming."""

from __future__ import annotations

import contextlib
import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.producer.sources._lines import EventParser
from sequitur.producer.sources.dir import DirectorySource
from tests.support.fake_intake import CrashedError, FakeIntake, FakeJournal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_CALLS = ("open", "rename", "replace", "stat", "fstat", "scandir", "pread", "fsync", "unlink")
_STEPS = 60


class _Steps:
    """Counts what the source asks of disk and journal; the writer acts, or all ends, at a step.

    Other tests' threads may still run in this process: what they ask is no step.
    """

    def __init__(self) -> None:
        self.at: dict[int, Callable[[], None]] = {}
        self.count = 0
        self._hushed = False
        self._thread = threading.current_thread()

    def __call__(self) -> None:
        if self._hushed or threading.current_thread() is not self._thread:
            return
        self.count += 1
        action = self.at.get(self.count)
        if action is not None:
            self._hushed = True
            try:
                action()
            finally:
                self._hushed = False


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Steps]:
    """Each call of the file system is a step."""
    steps = _Steps()

    def stepping(call: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*args: Any, **named: Any) -> Any:
            steps()
            return call(*args, **named)

        return stepped

    with monkeypatch.context() as patch:
        for name in _CALLS:
            patch.setattr(os, name, stepping(getattr(os, name)))
        yield steps


def _put(folder: Path, content: bytes) -> None:
    (folder / "a.part").write_bytes(content)
    (folder / "a.part").rename(folder / "a")


def _append(folder: Path) -> None:
    """As a writer does who keeps to no rule."""
    if (folder / "a").exists():
        with (folder / "a").open("ab") as file:
            file.write(b"3\n")


async def _run(folder: Path, journal: FakeJournal, steps: _Steps) -> None:
    """Read until the folder has nothing left."""
    intake = FakeIntake(journal)
    intake.on_step = steps
    source = DirectorySource(folder, EventParser(None, 100), follow=False)
    await source.run(intake, journal.position)


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _assert_all_read(folder: Path, journal: FakeJournal) -> None:
    """Nothing is left, and nothing is called done that was not read."""
    contents = _contents(folder)
    assert [name for name in contents if not name.endswith(".done")] == []
    done = [line for content in contents.values() for line in content.splitlines()]
    assert [line for line in done if line not in journal.values] == []


@pytest.mark.promise("in-writer-replaces-file")
async def test_a_file_that_is_replaced_at_any_moment_is_read(tmp_path: Path, steps: _Steps) -> None:
    """The new content is read, once, whenever it came; the old one was read or was never ours."""
    met = 0
    for step in range(1, _STEPS):
        folder = tmp_path / str(step)
        folder.mkdir()
        (folder / "a").write_bytes(b"1\n2\n")
        (folder / "b").write_bytes(b"9\n")
        journal = FakeJournal()
        steps.count, steps.at = 0, {step: partial(_put, folder, b"3\n4\n")}
        await _run(folder, journal, steps)
        reached = steps.count >= step
        met += reached
        steps.at = {}
        await _run(folder, journal, steps)
        _assert_all_read(folder, journal)
        if reached:
            assert [value for value in journal.values if value in {b"3", b"4"}] == [b"3", b"4"]
        assert [value for value in journal.values if value in {b"1", b"2"}] in (
            [b"1", b"2"],
            [],  # it was replaced before it was opened
        )
    assert met > 10


@pytest.mark.promise("in-writer-replaces-file")
async def test_a_file_that_is_written_on_at_any_moment_is_read_to_its_end(
    tmp_path: Path, steps: _Steps
) -> None:
    """Lines that came after the end was read are read, too, and none twice."""
    for step in range(1, _STEPS):
        folder = tmp_path / str(step)
        folder.mkdir()
        (folder / "a").write_bytes(b"1\n2\n")
        journal = FakeJournal()
        steps.count, steps.at = 0, {step: partial(_append, folder)}
        await _run(folder, journal, steps)
        steps.at = {}
        await _run(folder, journal, steps)
        _assert_all_read(folder, journal)
        assert journal.values in ([b"1", b"2", b"3"], [b"1", b"2"])


@pytest.mark.promise("in-writer-replaces-file")
@pytest.mark.parametrize("content", [b"3\n4\n", b"1\n2\n", b"1\n2\n3\n"])
async def test_a_replacement_and_a_crash_at_any_moment_lose_nothing(
    tmp_path: Path, steps: _Steps, content: bytes
) -> None:
    """The crash may come right behind the replacement or some steps later, as in a power cut."""

    def crash() -> None:
        raise CrashedError

    for step in range(1, 34):
        for later in (1, 2, 3, 5, 8):
            folder = tmp_path / f"{step} {later}"
            folder.mkdir()
            (folder / "a").write_bytes(b"1\n2\n")
            journal = FakeJournal()
            steps.count = 0
            steps.at = {
                step: partial(_put, folder, content),
                step + later: crash,
            }
            with contextlib.suppress(CrashedError):
                await _run(folder, journal, steps)
            reached = steps.count >= step
            steps.at = {}
            journal.lose(0.0)
            await _run(folder, journal, steps)
            _assert_all_read(folder, journal)
            if reached:
                # What the writer put there last came behind what it had put there before.
                lines = content.splitlines()
                assert journal.values[-len(lines) :] == lines


async def test_a_file_that_was_taken_by_its_reader_is_read_after_a_crash(tmp_path: Path) -> None:
    """What stands under the name of a check, and was not read, is read before anything else."""
    (tmp_path / ".a.1.checking").write_bytes(b"1\n")
    (tmp_path / "a").write_bytes(b"2\n")
    journal = FakeJournal()
    await _run(tmp_path, journal, _Steps())
    assert journal.values == [b"1", b"2"]
    assert _contents(tmp_path) == {"a.done": b"1\n", "a.2.done": b"2\n"}
