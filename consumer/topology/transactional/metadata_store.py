"""Where the metadata of transactions is kept: text names, and values that JSON has a form for."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote, unquote

from sequitur.base.process import make_folder, sync
from sequitur.errors import TransactionMetadataError, TransactionOrderError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


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


class RotatingTransactionalState:
    """Metadata by transaction id, each made from the one before.

    After Storm's class of this name. All in the store is read once, when this is made: it is the
    only writer of its folder from then on.

    Args:
        store: Where it is kept.
        name: The folder in it.
        strictly_ordered: Whether ids begin at 1 and have no gaps. Else they grow: a partition may
            appear late, and be away for a while.

    Raises:
        TransactionMetadataError: The store holds what cannot be read.
    """

    def __init__(self, store: MetadataStore, name: str, *, strictly_ordered: bool = True) -> None:
        self._store = store
        self._name = name
        self._is_strict = strictly_ordered
        ids = sorted(_transaction_id(found, name) for found in store.names(name))
        self._metadata = {one: store.read(self._key(one)) for one in ids}  # always in order of ids

    def __contains__(self, transaction_id: object) -> bool:
        return transaction_id in self._metadata

    @property
    def transaction_ids(self) -> Sequence[int]:
        """Those that have metadata, in order."""
        return tuple(self._metadata)

    @property
    def last(self) -> Any:
        """Metadata of the latest transaction; None without any."""
        return next(reversed(self._metadata.values()), None)

    def previous(self, transaction_id: int) -> Any:
        """Return the metadata of the latest transaction before one; None without any."""
        before = [one for one in self._metadata if one < transaction_id]
        return self._metadata[before[-1]] if before else None

    def state(self, transaction_id: int, initialize: Callable[[int, Any], Any]) -> Any:
        """Return the metadata of a transaction, and make it if there is none.

        Args:
            transaction_id: The transaction.
            initialize: Takes its id and the metadata of the transaction before, None without one;
                returns its metadata. What it raises goes through, and nothing is kept.

        Raises:
            TransactionOrderError: There is none, and it is not this transaction's turn.
            TransactionMetadataError: JSON has no form for the metadata.
        """
        if transaction_id not in self._metadata:
            self._check_turn(transaction_id)
            made = initialize(transaction_id, self.last)
            key = self._key(transaction_id)
            self._store.write(key, made)
            self._metadata[transaction_id] = self._store.read(key)
        return self._metadata[transaction_id]

    def cleanup_before(self, transaction_id: int) -> None:
        """Remove the metadata of transactions before one, but what the next one goes on from.

        So if that one itself has none, the latest before it is kept.
        """
        kept = max((one for one in self._metadata if one <= transaction_id), default=0)
        self._remove([one for one in self._metadata if one < kept])

    def remove_after(self, transaction_id: int) -> None:
        """Remove the metadata of all transactions behind one: they are made anew."""
        # The latest goes first: whoever is killed in between leaves no gap.
        self._remove([one for one in reversed(self._metadata) if one > transaction_id])

    def _remove(self, ids: Sequence[int]) -> None:
        for one in ids:
            self._store.remove(self._key(one))
            del self._metadata[one]

    def _check_turn(self, transaction_id: int) -> None:
        latest = next(reversed(self._metadata), 0)
        if transaction_id < 1 or transaction_id <= latest:
            raise TransactionOrderError(
                f"{self._name}: transaction {transaction_id} has no metadata"
                + (f", and transaction {latest} behind it has" if latest else ": ids begin at 1")
            )
        if self._is_strict and transaction_id != latest + 1:
            raise TransactionOrderError(
                f"{self._name}: transaction {transaction_id} cannot begin: "
                + (f"the latest with metadata is {latest}" if latest else "none before it has")
                + f", so that {latest + 1} is next"
            )

    def _key(self, transaction_id: int) -> str:
        return f"{self._name}/{transaction_id}"


def _transaction_id(key: str, name: str) -> int:
    text = key.removeprefix(f"{name}/")
    if not (text.isascii() and text.isdecimal()) or text != str(int(text)) or text == "0":
        raise TransactionMetadataError(f"metadata {key!r}: {text!r} is no transaction id")
    return int(text)
