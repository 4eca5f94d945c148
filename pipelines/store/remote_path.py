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
    @property
    def uri(self) -> str:
        """Its name, as a URI."""


_Store = TypeVar("_Store", bound=Store)


@dataclass(frozen=True, slots=True, order=True)
class RemotePath(Generic[_Store]):
    store: _Store
    key: str

    def __str__(self) -> str:
        return f"{self.store.uri}/{self.key}"

    def __truediv__(self, name: str) -> Self:
        return type(self)(self.store, f"{self.key}/{name}" if self.key else str(name))

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> Self:
        return type(self)(self.store, self.key.rpartition("/")[0])

    def read_bytes(self) -> bytes:
        with self.open_input() as file:
            content: bytes = file.read()
        return content

    def write_bytes(self, content: bytes) -> None:
        """Write the file whole, over what is there, as tasks write it."""
        with self.open_output() as file:
            file.write(content)

    def unlink(self, *, missing_ok: bool = True) -> None:
        del missing_ok
        self.delete_all()

    def delete_all(self) -> None:
        raise NotImplementedError

    def delete_files(self, names: Sequence[str]) -> None:
        """Delete files of this folder; they may be missing."""
        for name in names:
            (self / name).delete_all()

    def delete_folders(self, names: Sequence[str]) -> None:
        self.delete_files(names)

    def drop_unfinished(self) -> None:
        """Delete from this folder what dead writers have left unfinished."""

    def open_input(self) -> pa.NativeFile:
        raise NotImplementedError

    def open_output(self) -> pa.NativeFile:
        """Open it for writing; it appears whole once it is closed."""
        raise NotImplementedError


def parts_of(location: str) -> tuple[str, str, str]:
    """Return the scheme of a URI, its host or bucket, and the name there."""
    scheme, _, name = location.partition("://")
    place, _, key = name.partition("/")
    parts = [part for part in key.split("/") if part]  # as Hadoop reads names
    if not place or {".", ".."}.intersection(parts):
        raise CheckpointError(
            f"checkpoint {location}: name a bucket or a namenode, and a folder without . and .."
        )
    return scheme, place, "/".join(parts)
