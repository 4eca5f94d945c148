"""A checkpoint's folder that two users of the operating system share."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from sequitur.errors import CheckpointError
from sequitur.pipelines.store.storage import (
    LocalStorage,
    new_file,
    new_folder,
    write_aside,
    write_new,
    write_whole,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def _modes(folder: Path) -> dict[str, int]:
    found = folder.rglob("*")
    return {str(one.relative_to(folder)): stat.S_IMODE(one.stat().st_mode) for one in found}


def _fill(folder: Path) -> None:
    storage = LocalStorage(folder)
    storage.make_folder("")
    storage.make_folder("done")
    assert storage.create("done/1", "{}")
    storage.replace("done/2", "{}")
    new_folder(folder / "topology" / "1-1" / "states")
    new_file(folder / "topology" / "1-1" / "rows").close()
    write_new(folder / "topology" / "1-1" / "states" / "one", b"state")
    write_aside(folder / "topology" / "1-1" / "result", b"result")
    write_whole(folder / "replays" / "request", b"request")


@pytest.mark.promise("order-workers-cluster-run")
def test_what_is_made_in_a_shared_folder_is_shared_with_the_group_alone(tmp_path: Path) -> None:
    """Whatever the umask, and however far below."""
    (folder := tmp_path / "checkpoint").mkdir()
    folder.chmod(0o2770)
    _fill(folder)
    modes = _modes(folder)
    folders = {"done", "topology", "topology/1-1", "topology/1-1/states", "replays"}
    assert {name: mode for name, mode in modes.items() if mode == 0o2770}.keys() == folders
    files = {name: mode for name, mode in modes.items() if name not in folders}
    assert {*files.values()} == {0o660}
    assert len(files) == 6


@pytest.mark.parametrize("mode", [0o755, 0o2755, 0o2775, 0o770, 0o2771])
def test_what_is_made_elsewhere_is_as_the_umask_says(tmp_path: Path, mode: int) -> None:
    """A folder that others than the group may read, or that has no group's right, is not shared."""
    (folder := tmp_path / "checkpoint").mkdir()
    folder.chmod(mode)
    _fill(folder)
    assert {one & 0o777 for one in _modes(folder).values()} == {0o755, 0o644}


@pytest.mark.promise("order-workers-cluster-run")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_folder_of_another_user_is_refused_with_both_names(tmp_path: Path) -> None:
    """A file that was made there is gone; by a group's folder it is taken."""
    (folder := tmp_path / "runs").mkdir()
    os.chown(folder, 65_534, 0)
    for write in (new_file, lambda one: write_aside(one, b"")):
        with pytest.raises(CheckpointError, match=r"user 'nobody'.*is the user 'root'.*mode 2770"):
            write(folder / "rows")
    assert [*folder.iterdir()] == []
    folder.chmod(0o2770)
    new_file(folder / "rows").close()
    assert _modes(folder) == {"rows": 0o660}
