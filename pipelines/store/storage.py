"""Where a checkpoint and its files are: on a path, in an object store, or in HDFS.

The driver and its tasks open, write and delete them by their *location*: a `Path`, or an
`RemotePath`, with those of a path's methods that are needed here. Either can be pickled.

A file is written once, by one attempt, under a name that nobody else has, and is there from then
on: so nobody renames files, and nobody lists a folder to know what counts. That says the document
that names them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeAlias, TypeVar, get_args

import pyarrow as pa

from sequitur.base.retry import Backoff, Retry
from sequitur.base.stored import File
from sequitur.errors import CheckpointError
from sequitur.pipelines.store import durable
from sequitur.pipelines.store.durable import naming
from sequitur.pipelines.store.hdfs_path import HdfsPath, hdfs_path, settings_of_environment
from sequitur.pipelines.store.object_path import ObjectPath, object_path
from sequitur.pipelines.store.sharing import admit, make_folders, not_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Location: TypeAlias = Path | ObjectPath | HdfsPath
if TYPE_CHECKING:
    StoredFile: TypeAlias = Location
else:
    StoredFile = File
    for _kind in get_args(Location):
        File.register(_kind)
OVERSIZED_FOLDER: Final = "oversized"
"""Rows that are too large for a topic, in files by topic that no step deletes."""


def is_remote(location: Location) -> bool:
    """Tell whether each reading of it goes over the network."""
    return not isinstance(location, Path)


def open_file(location: Location) -> pa.NativeFile:
    return pa.OSFile(str(location), "rb") if isinstance(location, Path) else location.open_input()


def new_file(location: Location) -> pa.NativeFile:
    """Open a file for writing; it appears once it is closed. Its folder is there already."""
    if not isinstance(location, Path):
        return location.open_output()
    try:
        file = pa.OSFile(str(location), "wb")
    except PermissionError as error:
        raise not_shared(location.parent) from error
    try:
        admit(location)
    except BaseException:
        file.close()
        raise
    return file


@contextlib.contextmanager
def written(location: Location) -> Iterator[pa.NativeFile]:
    """Write a file in a block; it appears after the block, and errors name it."""
    with naming(location), new_file(location) as file:
        yield file


def new_folder(location: Location, *, may_be_there: bool = False) -> None:
    """Make a folder for files of tasks; it need not outlast a power cut before they do."""
    if isinstance(location, Path):
        make_folders(location, may_be_there=may_be_there)


def sync(location: Location) -> None:
    """Return once a closed file outlasts a power cut; elsewhere than on a path it does already."""
    if isinstance(location, Path):
        durable.sync(location)


def files_in(folder: Location) -> list[Location]:
    """Return what is in a folder, by name; empty if there is no such folder."""
    try:
        found: list[Location] = [*folder.iterdir()]
    except FileNotFoundError:
        return []
    return sorted(found, key=lambda one: one.name)


def delete_all(location: Location) -> None:
    if isinstance(location, Path):
        shutil.rmtree(location)
    else:
        location.delete_all()


def write_new(location: Location, content: bytes) -> None:
    """Write a file that nobody knows of yet."""
    with written(location) as file:
        file.write(content)


def write_aside(location: Location, content: bytes) -> None:
    """Write a file whole or not at all; nothing that is to last may depend on it."""
    if not isinstance(location, Path):
        location.write_bytes(content)
        return
    with durable.written_aside(location) as hidden:
        write_new(hidden, content)


def write_whole(location: Location, content: bytes) -> None:
    """Replace a file whole or not at all; when this returns, the file will last."""
    if not isinstance(location, Path):
        location.write_bytes(content)
        return
    durable.make_folder(location.parent)
    with durable.written_aside(location) as hidden:
        hidden.write_bytes(content)
        durable.sync(hidden)
    durable.sync(location.parent)


LOCAL_SCHEME: Final = "file:"
_RETRY: Final = Retry(most=6, backoff=Backoff(initial_ms=200, maximum_ms=3_200, jitter=0))
"""So often a store is asked, at most, who has created a document."""
_Place = TypeVar("_Place", Path, ObjectPath | HdfsPath)


def _passes(error: Exception) -> str | None:
    if isinstance(error, FileNotFoundError | PermissionError):
        return None  # there is no bucket, or no right to it
    return str(error) if isinstance(error, OSError) else None


class SparkFolder(Protocol):
    """A folder, as far as is needed where Spark writes. What is in it is named from there.

    Files that begin with a dot are temporary: nobody is shown them.
    """

    @property
    def root(self) -> str:
        """The folder as a URI."""

    def exists(self, name: str) -> bool:
        """Tell whether there is such a file or folder."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, in order; empty if there is no such folder."""

    def read(self, name: str) -> str:
        """Read a file."""

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with all that is in it; it may be missing."""

    def drop_unfinished(self, folder: str) -> None:
        """Delete from a folder what writers have left there that died in the middle.

        A writer of ours that is alive writes its file anew.
        """

    def sync(self, *names: str) -> None:
        """Return once files, and folders with all in them, outlast a power cut.

        What is missing is passed over.
        """


class Storage(SparkFolder, Protocol):
    """A folder in which a checkpoint is, such as `frontier/000000000007`."""

    def location(self, name: str) -> Location:
        """Return the location of something in it, for `open_file` and its like."""

    def create(
        self,
        name: str,
        text: str,
        after: Sequence[str] = (),
        *,
        lasts: bool = True,
        check: Callable[[], object] = bool,
    ) -> bool:
        """Write a file whole or not at all, and never over one; whether it was not there before.

        When this returns, the file outlasts a power cut, unless it need not (`lasts`). What `after`
        names does so before the file has its name; see `sync`. `check` is called right before that;
        if it raises, there is no file.
        """

    def replace(self, name: str, text: str) -> None:
        """Replace a file whole; nothing may depend on it."""

    def make_folder(self, name: str) -> None:
        """Make a folder that outlasts a power cut; it may be there."""

    def delete_files(self, names: Sequence[str]) -> None:
        """Delete files; they may be missing."""

    def delete_folders(self, names: Sequence[str]) -> None:
        """Delete folders with all that is in them."""


def local_path(location: str) -> Path | None:
    """Return the local path of a path or URI; None if it is not local.

    Without a session: what a path without a scheme means to Spark, its settings may change.
    """
    # Hadoop writes file:/path, with one slash.
    local = location.removeprefix("file://").removeprefix(LOCAL_SCHEME)
    return None if "://" in local else Path(local).absolute()


def storage_at(location: str) -> Storage:
    """Return the folder at a path or URI, without a session.

    What a store asks for is taken from the environment, as its own tools take it.
    """
    if (local := local_path(location)) is not None:
        return LocalStorage(local)
    found = object_path(location, lambda _: None) or hdfs_path(location, settings_of_environment())
    if found is None:
        raise CheckpointError(
            f"{location}: this command opens only local paths and stores that it reaches without "
            "Spark (s3, gs, abfs, hdfs)"
        )
    return RemoteStorage(found)


class _OpenFolder(Generic[_Place]):
    """A folder whose files are opened by their location; it may not exist yet."""

    def __init__(self, root: _Place) -> None:
        self._root: _Place = root

    def location(self, name: str) -> _Place:
        return self._root / name if name else self._root

    def exists(self, name: str) -> bool:
        return self.location(name).exists()

    def names(self, folder: str) -> list[str]:
        names = [one.name for one in files_in(self.location(folder))]
        return [name for name in names if not name.startswith(".")]


class LocalStorage(_OpenFolder[Path]):
    def __init__(self, root: Path) -> None:
        super().__init__(root.absolute())

    @property
    def root(self) -> str:
        return f"{LOCAL_SCHEME}{self._root}"

    def names(self, folder: str) -> list[str]:
        try:
            found = os.listdir(self.location(folder))  # noqa: PTH208 - a step lists some folders
        except FileNotFoundError:
            return []
        return sorted(name for name in found if not name.startswith("."))

    def read(self, name: str) -> str:
        return self.location(name).read_text()

    def create(
        self,
        name: str,
        text: str,
        after: Sequence[str] = (),
        *,
        lasts: bool = True,
        check: Callable[[], object] = bool,
    ) -> bool:
        return durable.create(
            self.location(name),
            text,
            [self.location(one) for one in after],
            lasts=lasts,
            check=check,
        )

    def replace(self, name: str, text: str) -> None:
        durable.replace(self.location(name), text)

    def delete(self, name: str) -> None:
        path = self.location(name)
        try:
            path.unlink()
        except FileNotFoundError:
            return
        except (IsADirectoryError, PermissionError):  # the latter is what macOS says of a folder
            shutil.rmtree(path, ignore_errors=True)

    def make_folder(self, name: str) -> None:
        durable.make_folder(self.location(name))

    def delete_files(self, names: Sequence[str]) -> None:
        for name in names:
            self.delete(name)

    def delete_folders(self, names: Sequence[str]) -> None:
        self.delete_files(names)

    def drop_unfinished(self, folder: str) -> None:
        durable.drop_unfinished(self.location(folder))

    def sync(self, *names: str) -> None:
        durable.sync_all(self.location(name) for name in names)


class RemoteStorage(_OpenFolder[ObjectPath | HdfsPath]):
    """A folder in an object store or in HDFS; what either has taken, it keeps.

    A document is created by a conditional put, or by a rename that writes over nothing: a store
    does either for one writer alone. The answer may be lost, and the client then asks again and is
    told that there is one: so a client that is refused, or gets no answer, reads the document. The
    document names its owner (`store.owned_folder`): with our own text in it, we have created it.
    """

    @property
    def root(self) -> str:
        return str(self._root)

    def read(self, name: str) -> str:
        return self.location(name).get().decode()

    def create(
        self,
        name: str,
        text: str,
        after: Sequence[str] = (),
        *,
        lasts: bool = True,
        check: Callable[[], object] = bool,
    ) -> bool:
        del after, lasts
        place, content = self.location(name), text.encode()

        # Nobody may continue before it is known who created it.
        def is_ours() -> bool:
            check()
            return place.put_new(content) or place.get() == content

        return _RETRY.run(is_ours, _passes)

    def replace(self, name: str, text: str) -> None:
        self.location(name).put(text.encode())

    def delete(self, name: str) -> None:
        self.location(name).delete_all()

    def make_folder(self, name: str) -> None:
        """Do nothing: there are no folders that outlast what is in them."""

    def delete_files(self, names: Sequence[str]) -> None:
        self._root.delete_files(names)

    def delete_folders(self, names: Sequence[str]) -> None:
        self._root.delete_folders(names)

    def drop_unfinished(self, folder: str) -> None:
        self.location(folder).drop_unfinished()

    def sync(self, *names: str) -> None:
        """Do nothing: what was written is kept."""
