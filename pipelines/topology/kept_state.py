"""What keyed bolts keep, read from a checkpoint. A job may run on it: nothing is written."""

from __future__ import annotations

import contextlib
import heapq
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec
import pyarrow as pa

from sequitur.base.stored import load
from sequitur.consumer.topology.api.builder import KEY_ENTRIES
from sequitur.consumer.topology.api.key_items import LIST, MAP, name_of
from sequitur.consumer.topology.engine.key_groups import shown_key, stored_key
from sequitur.consumer.topology.engine.keyed import LAST_PLACE, decoded, entry_key
from sequitur.errors import CheckpointError, KeyedStateError
from sequitur.pipelines.store.documents import damaged, read_document
from sequitur.pipelines.store.epochs import folder_of_epoch, newest_epoch
from sequitur.pipelines.store.job_identity import check_format
from sequitur.pipelines.store.storage import storage_at
from sequitur.pipelines.topology.kept_keys import keys_by_bolt
from sequitur.pipelines.topology.key_files import KeyFiles
from sequitur.pipelines.topology.processed import Processed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sequitur.pipelines.store.storage import Storage
    from sequitur.pipelines.topology.kept_keys import BoltKeys


class KeptKey(NamedTuple):
    step: int  # it is what was kept after this step
    key: bytes
    state: Any  # plain values; None without a state
    state_bytes: int  # of map and list, too
    timers: dict[str, int]  # when each is due, epoch ms
    named: list[tuple[Any, Any]]  # names and values of its map, in the order of names
    listed: list[Any]  # values of its list


class KeptState:
    """The state in a checkpoint. A merge may delete a file before it is read: a newer step is read.

    Raises:
        CheckpointError: It is not a checkpoint of a topology, or is damaged.
    """

    def __init__(self, storage: Storage, location: str) -> None:
        self._storage = storage
        self._location = location

    @classmethod
    def at(cls, location: str) -> Self:
        storage = storage_at(location)
        folder = folder_of_epoch(location, newest_epoch(storage))
        return cls(storage if folder == location else storage_at(folder), location)

    def bolts(self) -> tuple[int, dict[str, BoltKeys]]:
        """Return the newest step, and what each bolt keeps."""
        newest = self._newest()
        return newest.step, keys_by_bolt(newest.keys)

    def get(self, bolt: str, key: bytes) -> KeptKey:
        """Return what is kept of a key.

        Raises:
            KeyedStateError: Nothing is kept of the bolt, or of the key.
        """
        for stored in _stored_keys(key) if self._is_by_field(bolt) else (key,):
            for found in self._rows(bolt, stored, stored + b"\0"):
                return found
        raise KeyedStateError(
            f"{self._location}: bolt {bolt!r} keeps nothing of key {key!r:.100} after step "
            f"{self._newest().step}. `sequitur state list` shows its keys"
        )

    def all(self, bolt: str, prefix: bytes = b"") -> Iterator[KeptKey]:
        """Yield what is kept of all keys that begin so, by key.

        Raises:
            KeyedStateError: Nothing is kept of the bolt.
        """
        if self._is_by_field(bolt):
            every = self._rows(bolt, b"", None)
            return (one for one in every if one.key.startswith(prefix))
        return self._rows(bolt, prefix, _behind(prefix))

    def _is_by_field(self, bolt: str) -> bool:
        return any(one.by_field for one in self._newest().keys if one.component == bolt)

    def _rows(self, bolt: str, low: bytes, high: bytes | None) -> Iterator[KeptKey]:
        step, shown = -1, shown_key if self._is_by_field(bolt) else bytes
        while True:
            newest = self._newest()
            try:
                files = self._files(newest, bolt)
                entries = self._files(newest, bolt + KEY_ENTRIES, may_miss=True)
                for key, stored in heapq.merge(*(one.range(low, high) for one in files)):
                    begin, end = entry_key(key, b""), entry_key(key, LAST_PLACE)
                    found = heapq.merge(*(one.range(begin, end) for one in entries))
                    own = [(place[len(begin) :], value) for place, value in found]
                    yield _kept(newest.step, shown(key), stored, own)
                    low = key + b"\0"
            except FileNotFoundError as error:
                if newest.step == step:
                    raise damaged(self._location, error) from error
                step = newest.step
            except (OSError, pa.ArrowException) as error:
                raise CheckpointError(f"{self._location} cannot be read: {error}") from error
            else:
                return

    def _files(self, newest: Processed, bolt: str, *, may_miss: bool = False) -> list[KeyFiles]:
        tasks = [one for one in newest.keys if one.component == bolt]
        if not tasks and not may_miss:
            others = ", ".join(sorted(repr(one) for one in keys_by_bolt(newest.keys)))
            raise KeyedStateError(
                f"{self._location} keeps nothing of a bolt {bolt!r} after step {newest.step}: "
                + (f"it keeps keys of {others}" if others else "no keyed bolt has kept a key")
            )
        return [
            KeyFiles(
                None if one.base is None else one.base.source, [file.source for file in one.changes]
            )
            for one in tasks
        ]

    def _newest(self) -> Processed:
        """Return what became of the newest step that is processed."""
        storage = self._storage
        job = read_document(storage, "format.json", dict)
        if job is None:
            raise CheckpointError(f"{self._location} is not a reorder job's checkpoint")
        check_format(self._location, job)
        meaning = partial(load, Processed, root=storage.location(""))
        found = None
        while found is None:
            names = storage.names("processed")
            if not names:
                raise CheckpointError(
                    f"{self._location}: no topology has processed a step. `sequitur reorder "
                    "inspect` shows what it holds"
                )
            found = read_document(storage, f"processed/{names[-1]}", meaning)
        return found


def _kept(step: int, key: bytes, stored: bytes, entries: Sequence[tuple[bytes, bytes]]) -> KeptKey:
    entry = decoded(stored)
    state = None if entry.state is None else _plain(entry.state)
    size = len(entry.state or b"") + entry.more.bytes
    timers = {name: one.at_ms for name, one in entry.timers.items()}
    named = [(name_of(place), _plain(value[1:])) for place, value in entries if place[:1] == MAP]
    listed = [_plain(value[1:]) for place, value in entries if place[:1] == LIST]
    return KeptKey(step, key, state, size, timers, named, listed)


def _plain(encoded: bytes) -> Any:
    return msgspec.to_builtins(msgspec.msgpack.decode(encoded), str_keys=True)


def _stored_keys(key: bytes) -> Iterator[bytes]:
    """Yield what is stored of a key of fields that is shown so: text, bytes, an int, or several."""
    with contextlib.suppress(UnicodeDecodeError):
        yield stored_key(key.decode())
    yield stored_key(key)
    with contextlib.suppress(ValueError, KeyedStateError):
        yield stored_key(int(key))
    with contextlib.suppress(msgspec.DecodeError, KeyedStateError):
        several = msgspec.json.decode(key)
        if isinstance(several, list):
            yield stored_key(several)


def _behind(prefix: bytes) -> bytes | None:
    """Return the least bytes behind all that begin so; None if there are none."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1]) if head else None
