"""The acker: which tuple trees are done, by one XOR value a tree.

Each edge of a tree is a random 64-bit number that is XORed into its root's value twice: when the
tuple is emitted, and when it is acked. The order does not matter, and once all edges were there
twice the value is 0. It is 0 by chance with a probability of 2**-64 a step
(https://storm.apache.org/releases/2.6.0/Guaranteeing-message-processing.html). A failure is a flag
beside the value, and stays. A root is known once it is initialised; messages that came for it
before that count as well.

Only a topology of several stages has ackers. With one stage, `Executor.feed` and `OpenTrees` see
`Root.value` reach 0.

Messages come as columns. Each acker task has the roots that `acker_of` assigns to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    Numbers = np.ndarray[Any, np.dtype[np.uint64]]
    Flags = np.ndarray[Any, np.dtype[np.uint8]]
    Bools = np.ndarray[Any, np.dtype[np.bool_]]

_MERGED_AT: Final = 1 << 20
_MERGED_SHARE: Final = 3
"""The buffer is merged at this many messages, or at an eighth of the roots if that is more:
inserting new roots copies all columns, one by one, and sorting the buffer takes four times its
size."""
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)


class AckFlag(IntFlag):
    """What an acker knows of a root beside its value."""

    INIT = 1
    """Its spout has emitted it."""
    FAILED = 2
    """A tuple of its tree was failed."""
    HELD = 4
    """A tuple of its tree was skipped, since an earlier event of its key failed."""
    KEPT = 8
    """A tuple of its tree is in what a bolt of a transaction keeps of its batch."""


@dataclass(frozen=True, slots=True)
class TreeOutcomes:
    acked: int
    unfinished: Numbers  # the roots of the others: failed, held, or never acked
    flags: Flags  # the flags of these roots, of the kind `AckFlag`


class Acker:
    """The state of tuple trees, as columns of roots, values and flags: 17 bytes a tree.

    The columns are sorted by root. Messages are buffered until there are many; then they are sorted
    and merged: the value of a known root is updated in place, and new roots are inserted.
    """

    def __init__(self, merged_at: int = _MERGED_AT) -> None:
        self._merged_at = merged_at
        self._roots: Numbers = np.empty(0, np.uint64)
        self._values: Numbers = np.empty(0, np.uint64)
        self._flags: Flags = np.empty(0, np.uint8)
        self._buffer: list[tuple[Numbers, Numbers, Flags]] = []
        self._buffered_rows = 0

    def __len__(self) -> int:
        self._merge()
        return len(self._roots)

    def add(self, roots: Numbers, values: Numbers, flags: Flags) -> None:
        """Add messages as columns: roots, XORs of edges, and flags (`AckFlag`)."""
        self._buffer.append((roots, values, flags))
        self._buffered_rows += len(roots)
        if self._buffered_rows >= max(self._merged_at, len(self._roots) >> _MERGED_SHARE):
            self._merge()

    def outcomes(self) -> TreeOutcomes:
        """Return what became of all trees, by the messages that have come.

        A root that was never initialised is among the unfinished.
        """
        self._merge()
        known = self._flags & np.uint8(AckFlag.INIT | AckFlag.FAILED | AckFlag.HELD)
        is_done = (self._values == 0) & (known == AckFlag.INIT)
        left = ~is_done
        return TreeOutcomes(
            acked=int(np.count_nonzero(is_done)),
            unfinished=self._roots[left],
            flags=self._flags[left],
        )

    def _merge(self) -> None:
        if not self._buffer:
            return
        buffered, self._buffer, self._buffered_rows = self._buffer, [], 0
        roots, values, flags = combined(
            *(np.concatenate(column) for column in zip(*buffered, strict=True))
        )
        del buffered
        at = np.searchsorted(self._roots, roots)
        inside = at < len(self._roots)
        known = np.zeros(len(roots), np.bool_)
        known[inside] = self._roots[at[inside]] == roots[inside]
        place = at[known]
        self._values[place] ^= values[known]
        self._flags[place] |= flags[known]
        new = ~known
        if not new.any():
            return
        at = at[new]
        at += np.arange(len(at))  # each stands behind the new ones before it
        old = np.ones(len(self._roots) + len(at), np.bool_)
        old[at] = False
        self._roots = _inserted(self._roots, old, roots[new], at)
        self._values = _inserted(self._values, old, values[new], at)
        self._flags = _inserted(self._flags, old, flags[new], at)


def _inserted(column: Any, old: Bools, new_values: Any, at: Any) -> Any:
    """Return a column with new values at some places and its own at the others."""
    merged = np.empty(len(old), column.dtype)
    merged[at] = new_values
    merged[old] = column
    return merged


def combined(roots: Numbers, values: Numbers, flags: Flags) -> tuple[Numbers, Numbers, Flags]:
    """Combine messages into one row a root, sorted by root: values XORed, flags ORed."""
    if not len(roots):
        return roots, values, flags
    order = np.argsort(roots)  # need not be stable: XOR and OR are commutative
    roots = roots[order]
    first = np.flatnonzero(np.concatenate(([True], roots[1:] != roots[:-1])))
    return (
        roots[first],
        np.bitwise_xor.reduceat(values[order], first),
        np.bitwise_or.reduceat(flags[order], first),
    )


def acker_of(roots: Numbers, ackers: int) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Return the acker of each root: hash(root) mod ackers."""
    mixed = (roots * _MIX) >> np.uint64(32)
    return (mixed % np.uint64(ackers)).astype(np.intp)


def columns(roots: Iterable[Any]) -> tuple[Numbers, Numbers, Flags]:
    """Return the messages about one task's roots, as columns; untracked roots are left out.

    `AckFlag.INIT` is not among the flags: the spout's task adds it to the roots it emitted.
    """
    tracked = [root for root in roots if root.is_tracked]
    ids = np.array([root.id for root in tracked], np.uint64)
    values = np.array([root.value for root in tracked], np.uint64)
    flags = np.array(
        [
            (AckFlag.FAILED if root.failure is not None else 0)
            | (AckFlag.HELD if root.is_held else 0)
            | (AckFlag.KEPT if root.kept else 0)
            for root in tracked
        ],
        np.uint8,
    )
    return ids, values, flags
