"""Runs a keyed bolt by another field than the key of the events.

Events of one such key fail apart from each other. So each call leaves an image, also one that has
only looked: once ackers have told, all calls at a key behind one that is undone are undone, too
(`step.key_ties`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sequitur.consumer.topology.api.key_items import Entries
from sequitur.consumer.topology.engine.key_groups import key_of, key_value
from sequitur.consumer.topology.engine.keyed import (
    EXPIRY,
    LAST_PLACE,
    TIMER,
    Image,
    KeyedRunner,
)
from sequitur.consumer.topology.engine.trees import TrackedEvent
from sequitur.errors import TopologyError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sequitur.consumer.topology.api.bolt import TopologyContext
    from sequitur.consumer.topology.api.keyed import Entry, Key, KeyedBolt
    from sequitur.consumer.topology.api.tuple import Stream
    from sequitur.consumer.topology.engine.task_output import Environment
    from sequitur.consumer.topology.engine.trees import TrackedTuple

_IMAGE_BYTES: Final = 200


class FieldKeyedRunner(KeyedRunner):
    """Runs one task of it."""

    def __init__(self, environment: Environment, context: TopologyContext, bolt: KeyedBolt) -> None:
        super().__init__(environment, context, bolt)
        if bolt.takes_events:
            self.tuple_kind = TrackedEvent
        components = environment.topology.components
        self._key_of = {
            (one.component, one.stream): key_of(
                one.grouping.fields, components[one.component].streams[one.stream]
            )
            for one in components[context.component].inputs
        }

    def run(self, given: TrackedTuple) -> None:
        self._check_anchored(given)
        super().run(given)

    def _check_anchored(self, given: TrackedTuple) -> None:
        if not any(root.is_tracked for root, _ in given.trees()):
            raise TopologyError(
                f"keyed bolt {self._component!r} got a tuple of {given.source!r} without an "
                "anchor: what it does to its key could not be undone. Anchor it"
            )

    def _keyed(self, given: TrackedTuple) -> Any:
        if given.declared is not TIMER or given.values[0] != EXPIRY:
            return super()._keyed(given)
        self._key = self.expired(given)
        return None

    def expired(self, given: TrackedTuple) -> Key:
        """Return a key whose state, map and list are forgotten."""
        key = self.key_of(given)
        if key.before.more.bytes and self._of_entries:
            key.entries = Entries(key)
            places = (place for place, _ in self.stored(key.stored, b"", LAST_PLACE))
            key.entries.written = dict.fromkeys(places)
        key.entry = key.before.expired()
        return key

    def _keep(
        self, given: TrackedTuple, key: Key, entry: Entry, entries: Mapping[bytes, bytes | None]
    ) -> None:
        keys, log, before = self._keys, self._keys.log, key.before
        mark, where = len(log.images), (self._store, key.stored)
        roots = [root.id for root, _ in given.trees() if root.is_tracked]
        if entry is not before or entries:
            keys.replace(roots[0], *where, before, entry, entries)
            image = log.images.pop()
        else:  # it has only looked
            log.found.setdefault(where, before)
            log.left.setdefault(where, before)
            image = Image(roots[0], *where, before)
        log.images.extend(image._replace(root=root, call=mark) for root in roots)
        keys.images_bytes += _IMAGE_BYTES + len(before.state or b"")
        keys.images_bytes += sum(len(one or b"") for one in image.entries.values())

    def _key_in(self, given: TrackedTuple) -> tuple[bytes, Any]:
        if given.declared is TIMER:
            stored = given.root.event[0]
        else:
            stored = self.stored_key(given.declared, given.values)
        return stored, key_value(stored)

    def stored_key(self, declared: Stream, values: tuple[Any, ...]) -> bytes:
        """Return the key of a stream's tuple as it is stored."""
        return self._key_of[declared.component, declared.name](values)
