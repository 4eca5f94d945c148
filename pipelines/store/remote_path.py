"""Files that are reached over the network alone: named like files in folders, on a path or not.

A place is pickled into tasks, with what it takes to get there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

from sequitur.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa


class Store(Protocol):
    """What files are in, and how to reach it."""

    @property
    def uri(self) -> str:
        """Its name, as a URI."""


_Store = TypeVar("_Store", bound=Store)


@dataclass(frozen=True, slots=True, order=True)
class RemotePath(Generic[_Store]):
    """A file or folder, with those of a path's methods that are needed."""

    store: _Store
    key: str

    def __str__(self) -> str:
        return f"{self.store.uri}/{self.key}"

    def __truediv__(self, name: str) -> Self:
        return type(self)(self.store, f"{self.key}/{name}" if self.key else str(name))

    @property
    def name(self) -> str:
        """The last part of its name."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> Self:
        """The folder it is in."""
        return type(self)(self.store, self.key.rpartition("/")[0])

    def read_bytes(self) -> bytes:
        """Return what is in it, as tasks read it."""
        with self.open_input() as file:
            content: bytes = file.read()
        return content

    def write_bytes(self, content: bytes) -> None:
        """Write the file whole, as tasks write it, and replace what is there."""
        with self.open_output() as file:
            file.write(content)

    def unlink(self, *, missing_ok: bool = True) -> None:
        """Delete the file, if it is there."""
        del missing_ok
        self.delete_all()

    def delete_all(self) -> None:
        """Delete the file, and all files in a folder of this name."""
        raise NotImplementedError

    def delete_files(self, names: Sequence[str]) -> None:
        """Delete files of this folder, which need not be there."""
        for name in names:
            (self / name).delete_all()

    def delete_folders(self, names: Sequence[str]) -> None:
        """Delete folders of this folder, with all that is in them."""
        self.delete_files(names)

    def drop_unfinished(self) -> None:
        """Delete from this folder what writers have left there that died in the middle."""

    def open_input(self) -> pa.NativeFile:
        """Open it for reading at any place in it."""
        raise NotImplementedError

    def open_output(self) -> pa.NativeFile:
        """Open it for writing: it is there, as a whole, once that is closed."""
        raise NotImplementedError


def parts_of(location: str) -> tuple[str, str, str]:
    """Return the scheme of a URI, the host or bucket, and what is named there."""
    scheme, _, name = location.partition("://")
    place, _, key = name.partition("/")
    parts = [part for part in key.split("/") if part]  # as Hadoop reads it, which names its own so
    if not place or {".", ".."}.intersection(parts):
        raise CheckpointError(
            f"checkpoint {location}: name a bucket or a namenode, and a folder without . and .."
        )
    return scheme, place, "/".join(parts)
