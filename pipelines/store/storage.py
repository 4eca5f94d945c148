"""Where a checkpoint stands: on a path that all machines reach, in an object store, or in HDFS."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from sequitur.base.retry import Backoff, Retry
from sequitur.errors import CheckpointError
from sequitur.pipelines.store import durable
from sequitur.pipelines.store.files import files_in
from sequitur.pipelines.store.hdfs_path import HdfsPath, hdfs_path, settings_of_environment
from sequitur.pipelines.store.object_path import ObjectPath, object_path

if TYPE_CHECKING:
    from sequitur.pipelines.store.files import Location

LOCAL_SCHEME: Final = "file:"
_RETRY: Final = Retry(most=6, backoff=Backoff(initial_ms=200, maximum_ms=3_200, jitter=0))
"""A document is asked for again of which the store has not said who has created it."""
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
        """Return the names in a folder, in order; none where there is no such folder."""

    def read(self, name: str) -> str:
        """Read a file."""

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with all that is in it; it need not be there."""

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
        """Return where something in it is, for `store.files`."""

    def create(self, name: str, text: str) -> bool:
        """Write a file whole or not at all, and never over one; whether it was not there before.

        When this returns, the file outlasts a power cut.
        """

    def replace(self, name: str, text: str) -> None:
        """Write a file whole, over what is there; nothing may rest on it."""

    def make_folder(self, name: str) -> None:
        """Make a folder that outlasts a power cut; it may be there."""


def local_path(location: str) -> Path | None:
    """Return the local path of a path or URI; None of one that is not local.

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
            f"{location}: only local paths, and what is reached without Spark (s3, gs, abfs, "
            "hdfs), can be opened by this command"
        )
    return RemoteStorage(found)


class _OpenFolder(Generic[_Place]):
    """A folder, which need not be there yet, whose files are opened by their location."""

    def __init__(self, root: _Place) -> None:
        self._root: _Place = root

    def location(self, name: str) -> _Place:
        """See `Storage`."""
        return self._root / name if name else self._root

    def exists(self, name: str) -> bool:
        """See `Storage`."""
        return self.location(name).exists()

    def names(self, folder: str) -> list[str]:
        """See `Storage`."""
        names = [one.name for one in files_in(self.location(folder))]
        return [name for name in names if not name.startswith(".")]


class LocalStorage(_OpenFolder[Path]):
    """A folder that programs reach by path."""

    def __init__(self, root: Path) -> None:
        super().__init__(root.absolute())

    @property
    def root(self) -> str:
        """See `Storage`."""
        return f"{LOCAL_SCHEME}{self._root}"

    def read(self, name: str) -> str:
        """See `Storage`."""
        return self.location(name).read_text()

    def create(self, name: str, text: str) -> bool:
        """See `Storage`."""
        return durable.create(self.location(name), text)

    def replace(self, name: str, text: str) -> None:
        """See `Storage`."""
        durable.replace(self.location(name), text)

    def delete(self, name: str) -> None:
        """See `Storage`."""
        path = self.location(name)
        try:
            path.unlink()
        except FileNotFoundError:
            return
        except (IsADirectoryError, PermissionError):  # the latter is what macOS says of a folder
            shutil.rmtree(path, ignore_errors=True)

    def make_folder(self, name: str) -> None:
        """See `Storage`."""
        durable.make_folder(self.location(name))

    def drop_unfinished(self, folder: str) -> None:
        """See `Storage`."""
        durable.drop_unfinished(self.location(folder))

    def sync(self, *names: str) -> None:
        """See `Storage`."""
        durable.sync_all(self.location(name) for name in names)


class RemoteStorage(_OpenFolder[ObjectPath | HdfsPath]):
    """A folder in an object store or in HDFS; what either has taken, it keeps.

    A document is created by a conditional put, or by a rename that writes over nothing: a store
    does either for one writer alone. The answer may be lost, and the client then asks again and is
    told that there is one: so whoever is refused, or hears nothing, reads the document. It says
    whose it is (`store.checkpoint`), so with our own text in it we have created it.
    """

    @property
    def root(self) -> str:
        """See `Storage`."""
        return str(self._root)

    def read(self, name: str) -> str:
        """See `Storage`."""
        return self.location(name).get().decode()

    def create(self, name: str, text: str) -> bool:
        """See `Storage`."""
        place, content = self.location(name), text.encode()

        # Nobody may go on before it is known who has created it.
        def is_ours() -> bool:
            return place.put_new(content) or place.get() == content

        return _RETRY.run(is_ours, _passes)

    def replace(self, name: str, text: str) -> None:
        """See `Storage`."""
        self.location(name).put(text.encode())

    def delete(self, name: str) -> None:
        """See `Storage`."""
        self.location(name).delete_all()

    def make_folder(self, name: str) -> None:
        """See `Storage`; there are no folders that outlast what is in them."""

    def drop_unfinished(self, folder: str) -> None:
        """See `Storage`."""
        self.location(folder).drop_unfinished()

    def sync(self, *names: str) -> None:
        """See `Storage`; what was written is kept."""
