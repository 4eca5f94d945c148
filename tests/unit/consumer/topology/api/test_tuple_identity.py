"""Roots and tuples are equal to themselves alone; what of a root goes to another task."""

from __future__ import annotations

import pickle

from sequitur.consumer.topology import FailReason, TreeFailure
from sequitur.consumer.topology.api.tuple import Stream
from sequitur.consumer.topology.engine.trees import TrackedTuple
from sequitur.consumer.topology.settling.root import Root

_EVENT = (b"k", b"v", (("id", b"1"),), 5, "readings", 2, 7, 9)
_STREAM = Stream("events", "default", ("word",))


def test_equal_fields_make_no_equal_roots_or_tuples() -> None:
    """They stand for events and edges: two of the same values are two, also as keys."""
    roots = [Root(1, _EVENT), Root(1, _EVENT)]
    assert roots[0] != roots[1]
    assert len(dict.fromkeys(roots)) == 2
    tuples = [TrackedTuple(("a",), _STREAM, roots[0], 3, None, None) for _ in range(2)]
    assert tuples[0] != tuples[1]
    assert len(set(tuples)) == 2


def test_root_goes_elsewhere_without_payload_and_outcome() -> None:
    """Another task knows who it is, its key and place; not what became of it here."""
    root = Root(3, _EVENT, 2, 1.5, is_tracked=True)
    root.value, root.failure, root.is_held = 8, TreeFailure(FailReason.FAILED), True
    sent: Root = pickle.loads(pickle.dumps(root))
    assert (sent.id, sent.attempt, sent.is_tracked) == (3, 2, True)
    assert (sent.key, sent.place, sent.order) == (root.key, root.place, root.order)
    assert (sent.event[1], sent.event[2]) == (None, ())
    assert (sent.value, sent.failure, sent.is_held) == (0, None, False)
