"""A checkpoint that is reached over the network alone: in an object store, or in HDFS.

A document is created by a conditional put, or by a rename that writes over nothing: a store does
either for one writer alone. The answer may be lost, and the client then asks again and is told that
there is one: so whoever is refused, or hears nothing, reads the document. It says whose it is
(`store.checkpoint`), so with our own text in it we have created it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sequitur.pipelines.store.hdfs_path import HdfsPath
    from sequitur.pipelines.store.object_path import ObjectPath

_WAITS_S: Final = (0.2, 0.4, 0.8, 1.6, 3.2)
"""Before a document is asked for again of which the store has not said who has created it."""


class RemoteStorage:
    """A folder in a store; what it has taken, it keeps.

    Args:
        root: The folder.
    """

    def __init__(self, root: ObjectPath | HdfsPath) -> None:
        self._root = root

    @property
    def root(self) -> str:
        """See `Storage`."""
        return str(self._root)

    def location(self, name: str) -> ObjectPath | HdfsPath:
        """See `Storage`."""
        return self._root / name if name else self._root

    def exists(self, name: str) -> bool:
        """See `Storage`."""
        return self.location(name).exists()

    def names(self, folder: str) -> list[str]:
        """See `Storage`."""
        names = [one.name for one in self.location(folder).iterdir()]
        return sorted(name for name in names if not name.startswith("."))

    def read(self, name: str) -> str:
        """See `Storage`."""
        return self.location(name).get().decode()

    def create(self, name: str, text: str) -> bool:
        """See `Storage`."""
        place, content = self.location(name), text.encode()
        for wait_s in _WAITS_S:
            try:
                return place.put_new(content) or place.get() == content
            except (FileNotFoundError, PermissionError):
                raise  # there is no bucket, or no right to it
            except OSError:
                # Nobody may go on before it is known who has created it.
                time.sleep(wait_s)
        return place.put_new(content) or place.get() == content

    def replace(self, name: str, text: str) -> None:
        """See `Storage`."""
        self.location(name).put(text.encode())

    def delete(self, name: str) -> None:
        """See `Storage`."""
        self.location(name).delete_all()

    def make_folder(self, name: str) -> None:
        """See `Storage`; there are no folders that outlast what is in them."""
        self.location(name).drop_unfinished()

    def sync(self, *names: str) -> None:
        """See `Storage`; what was written is kept."""
