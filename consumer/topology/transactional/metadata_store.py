"""Where the metadata of transactions is kept: text names, and values that JSON has a form for."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote, unquote

from sequitur.base.process import make_folder, sync
from sequitur.errors import TransactionMetadataError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SUFFIX: Final = ".json"
_UNFINISHED: Final = ".new"
_VERSION: Final = 1


class MetadataStore(Protocol):
    """Values by name. A name has parts with `/` between, of which all but the last are folders.

    One topology writes to a store; two at once are not told apart.
    """

    def names(self, folder: str) -> Sequence[str]:
        """Return the whole names of all values below a folder, in no order."""

    def read(self, name: str) -> Any:
        """Return a value as JSON gives it.

        Raises:
            KeyError: There is none of this name.
            TransactionMetadataError: It is damaged, or of a newer version; the message says where.
        """

    def write(self, name: str, value: Any) -> None:
        """Keep a value, in place of one that is there; when this returns it will last.

        Raises:
            TransactionMetadataError: JSON has no form for it.
        """

    def remove(self, name: str) -> None:
        """Remove a value, if it is there. A power cut may bring it back."""


class MemoryMetadataStore:
    """A store that lasts as long as the process."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def names(self, folder: str) -> Sequence[str]:
        """See `MetadataStore.names`."""
        return [name for name in self._texts if name.startswith(f"{folder}/")]

    def read(self, name: str) -> Any:
        """See `MetadataStore.read`."""
        return json.loads(self._texts[name])

    def write(self, name: str, value: Any) -> None:
        """See `MetadataStore.write`."""
        self._texts[name] = _as_json(name, value)

    def remove(self, name: str) -> None:
        """See `MetadataStore.remove`."""
        self._texts.pop(name, None)


class FolderMetadataStore:
    """A store of one file a value, each written aside, synced and renamed, with a checksum in it.

    Args:
        folder: Where; it is made if it is not there.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        make_folder(self._folder)

    def names(self, folder: str) -> Sequence[str]:
        """See `MetadataStore.names`."""
        found = (self._folder / _quoted(folder)).rglob(f"*{_SUFFIX}")
        return [
            unquote(path.relative_to(self._folder).as_posix().removesuffix(_SUFFIX))
            for path in found
        ]

    def read(self, name: str) -> Any:
        """See `MetadataStore.read`."""
        path = self._path(name)
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            raise KeyError(name) from None
        return _metadata(path, text)

    def write(self, name: str, value: Any) -> None:
        """See `MetadataStore.write`."""
        text = _as_json(name, value)
        path = self._path(name)
        make_folder(path.parent)
        document = f'{{"version": {_VERSION}, "crc32": {_checksum(text)}, "metadata": {text}}}\n'
        # One topology writes here: what a killed one has left under this name is written over.
        unfinished = path.with_name(path.name + _UNFINISHED)
        with unfinished.open("wb") as file:
            file.write(document.encode())
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        sync(path.parent)

    def remove(self, name: str) -> None:
        """See `MetadataStore.remove`."""
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"{_quoted(name)}{_SUFFIX}"


def _metadata(path: Path, text: bytes) -> Any:
    try:
        document = json.loads(text)
        version, expected = document["version"], document.get("crc32")
        metadata = document.get("metadata")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise TransactionMetadataError(
            f"{path}: the metadata of a transaction is damaged: {type(error).__name__}: {error}"
        ) from error
    if version != _VERSION:
        raise TransactionMetadataError(
            f"{path}: metadata of version {version!r}; this program knows {_VERSION}"
        )
    if _checksum(json.dumps(metadata)) != expected:
        raise TransactionMetadataError(
            f"{path}: the metadata of a transaction is damaged: its checksum is another one"
        )
    return metadata


def _as_json(name: str, value: Any) -> str:
    """Return the text that a value keeps when it is read and written again."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise TransactionMetadataError(
            f"metadata {name!r}: JSON has no form for it: {error}: {value!r}"
        ) from error
    return json.dumps(json.loads(text))


def _checksum(text: str) -> int:
    return zlib.crc32(text.encode())


def _quoted(name: str) -> str:
    """Return a name as a path that stays in its folder: no part of it is `..`, and none empty."""
    if "" in name.split("/"):
        raise ValueError(f"{name!r}: a part of this name is empty")
    return quote(name).replace(".", "%2E")
