"""Runs a keyed bolt in a transactional topology, where the state of keys is its batch's.

A try begins with what the last batch has left. If an event fails, its task is run again without it,
as the task of any bolt is that keeps something of its batch. So no call leaves an image.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sequitur.consumer.topology.api.keyed import Key
from sequitur.consumer.topology.engine.keyed_by_field import FieldKeyedRunner
from sequitur.consumer.topology.engine.transactions import TransactionRunner, count_kept
from sequitur.errors import KeyedStateError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sequitur.consumer.topology.api.keyed import Entry
    from sequitur.consumer.topology.engine.trees import TrackedTuple


class TransactionKey(Key):
    """A key without timers."""

    __slots__ = ()

    def timer(self, name: str, *, at: int) -> None:
        raise KeyedStateError(
            f"key {self.value!r:.100}: timer({name!r:.100}, at={at!r:.100}): a transactional "
            "topology calls no timers of keys"
        )


class TransactionKeyedRunner(TransactionRunner, FieldKeyedRunner):
    """Runs one task of it."""

    key_kind = TransactionKey

    def _check_anchored(self, given: TrackedTuple) -> None:
        """Take what belongs to the batch, and to no event: it is undone with the batch."""

    def _keep(
        self, given: TrackedTuple, key: Key, entry: Entry, entries: Mapping[bytes, bytes | None]
    ) -> None:
        if entry is not key.before or entries:
            root = given.root.id
            self._keys.replace(root, self._store, key.stored, key.before, entry, entries)
            self._keys.log.images.pop()
            count_kept(given, 1)
