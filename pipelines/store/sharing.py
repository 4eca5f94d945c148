"""A checkpoint on a path that two users of the operating system write to: driver's and workers'.

Driver and tasks unpickle what they find in it, so nobody else may write there. Two users share a
folder by its mode alone: setgid, with all rights for its group and none for others. What is made
below such a folder is like it, whatever the umask: folders 2770, files 0660. In any other folder a
task of another user than the one who has made it is refused.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from typing import TYPE_CHECKING, Final

from sequitur.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path


_FOLDER: Final = 0o2770
_FILE: Final = 0o660
_ALL: Final = 0o2777


def make_folders(folder: Path, *, may_be_there: bool = True) -> list[Path]:
    """Make a folder and those above it, each shared like the folder that it is in."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=may_be_there)
    for path in reversed(missing):
        share(path)
    return missing[::-1]


def share(path: Path) -> None:
    """Give a new file or folder to the group, if its folder is shared."""
    if _is_shared(path.parent):
        path.chmod(_FOLDER if path.is_dir() else _FILE)


def admit(path: Path) -> None:
    """Share a file that a task has made, or delete it where its user is not the folder's.

    Both are asked of the file system, which may know users by other numbers than this machine.
    """
    if _is_shared(path.parent):
        path.chmod(_FILE)
    elif path.stat().st_uid != path.parent.stat().st_uid:
        path.unlink()
        raise not_shared(path.parent)


def not_shared(folder: Path) -> CheckpointError:
    """Return the error of a process that may not write to another user's folder."""
    # Spark's name of the driver's user, where the folder cannot be looked at.
    owner = os.environ.get("SPARK_USER", "another")
    with contextlib.suppress(OSError):
        owner = _name(folder.stat().st_uid)
    return CheckpointError(
        f"{folder} belongs to the user {owner!r}, and this process, a task of the job, is the "
        f"user {_name(os.geteuid())!r}: run driver and workers as one user, or give the "
        "checkpoint's folder to a group of both, with mode 2770 (chgrp GROUP, chmod 2770)"
    )


def _is_shared(folder: Path) -> bool:
    return folder.stat().st_mode & _ALL == _FOLDER


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
