"""Files that outlast a power cut.

One rule, for all of a checkpoint: **before a document is written, all that it rests on is on the
disk, and before anything is done by a document, the document is.** On the disk means the bytes of
a file, its name in its folder, and that folder's name in its own. So a writer syncs its file, a
tree of files is synced before the document that names it, and a document before its name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from sequitur.base.process import sync
from sequitur.errors import CheckpointError
from sequitur.pipelines.store.sharing import make_folders, share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


__all__ = [
    "create",
    "drop_unfinished",
    "is_unfinished",
    "make_folder",
    "naming",
    "replace",
    "sync",
    "sync_all",
    "written_aside",
]

_UNFINISHED: Final = re.compile(r"\..+\.[0-9a-f-]{32,36}(\.tmp)?(\.crc)?")
"""Names of files that are being written, by us or by Spark, to be linked or renamed once whole."""
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, so that they outlast a power cut; it may be there."""
    for path in make_folders(folder):
        sync(path.parent)


def sync_all(paths: Iterable[Path]) -> None:
    """Return once files, and folders with all in them, outlast a power cut, with their names.

    What is missing is passed over: temporary files vanish while one looks.
    """
    folders: set[Path] = set()
    for path in paths:
        if path.is_dir():
            for below, _, names in os.walk(path, topdown=False):
                for name in names:
                    with contextlib.suppress(FileNotFoundError):
                        _sync(Path(below, name))
                _sync(Path(below))
            folders.add(path.parent)
        else:
            with contextlib.suppress(FileNotFoundError):
                _sync(path)
                folders.add(path.parent)
    for folder in sorted(folders):
        _sync(folder)


def _sync(path: Path) -> None:
    with naming(path):
        sync(path)


def create(
    path: Path,
    text: str,
    after: Sequence[Path] = (),
    *,
    lasts: bool = True,
    check: Callable[[], object] = bool,
) -> bool:
    """Write a file whole or not at all, and never over another; when this returns it will last.

    By a link, which fails where the name is taken, on NFS, too: of many that create one file at
    once, one succeeds.

    Args:
        path: The file.
        text: What it says.
        after: What outlasts a power cut before the file has its name; see `sync_all`. It is synced
            once the file's text is written: a disk takes all of that together.
        lasts: Whether the file is synced. Else a power cut may leave it cut short, or not at all.
        check: Called right before the file gets its name. If it raises, there is no file.
    """
    written = _hidden_name(path)
    try:
        with naming(path):
            written.write_text(text)
            share(written)
        sync_all(after)
        if lasts:
            with naming(path):
                sync(written)
        check()
        path.hardlink_to(written)
    except FileNotFoundError:
        if not path.parent.exists():
            raise
        # Another start deleted it as a dead writer's.
        return create(path, text, after, lasts=lasts, check=check)
    except FileExistsError:
        # NFS may have made the link, and lost the answer.
        return path.samefile(written)
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise CheckpointError(
                f"{path.parent}: the file system has no hard links, by which one of two jobs on a "
                "checkpoint gives way to the other: keep it on another file system"
            ) from error
        raise
    finally:
        written.unlink(missing_ok=True)
    if lasts:
        sync(path.parent)
    return True


@contextlib.contextmanager
def naming(path: object) -> Iterator[None]:
    """Have an error of a block that writes a file name the file, if it names none.

    What fails in writing, as on a full disk, knows no more than the number of an open file.
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def replace(path: Path, text: str) -> None:
    """Replace a file whole, without a sync; nothing may depend on it."""
    with written_aside(path) as written:
        written.write_text(text)


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Give a hidden path beside this one, and rename what the block writes there to it.

    A caller that needs it to last syncs the file in the block, and its folder afterwards.
    """
    written = _hidden_name(path)
    try:
        yield written
        share(written)
        written.rename(path)
    finally:
        written.unlink(missing_ok=True)


def is_unfinished(name: str) -> bool:
    """Tell whether a file has the name of an unfinished write."""
    return _UNFINISHED.fullmatch(name) is not None


def drop_unfinished(folder: Path) -> None:
    """Delete from a folder what dead writers have left unfinished."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if is_unfinished(path.name):
            path.unlink(missing_ok=True)


def _hidden_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid4().hex}")
