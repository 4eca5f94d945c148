"""The acker: which tuple trees are done, by one XOR value a tree.

Each edge of a tree is a random 64-bit number that is XORed into its root's value twice: when the
tuple is emitted, and when it is acked. The order does not matter, and once all edges were there
twice the value is 0. It is 0 by chance with a probability of 2**-64 a step
(https://storm.apache.org/releases/2.6.0/Guaranteeing-message-processing.html). A failure is a flag
beside the value, and stays. A root is known once it is initialised; what came for it before that
counts as well.

`Acker` takes one message at a time. `AckLedger` takes columns of them, and gives the same verdicts:
it is what each task of the distributed acker runs on the roots that fall to it
(`acker_of`).
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
"""So many messages wait, at least, and an eighth of the roots: to weave in new roots all columns
are copied, one by one, and what waits is sorted, which takes four times its size."""
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)


class AckFlag(IntFlag):
    """What is known of a root beside its value."""

    INIT = 1
    """Its spout has given it out."""
    FAILED = 2
    """A tuple of its tree was failed."""
    HELD = 4
    """A tuple of its tree was passed over, since an earlier event of its key failed."""


class Acker:
    """The trees that are open, and what became of those that are not.

    A root that is done or has failed is forgotten once `take` has given it out; what comes for it
    later is late, counted, and starts nothing.
    """

    def __init__(self) -> None:
        self._entries: dict[int, list[int]] = {}
        self._given_out: set[int] = set()
        self.late = 0

    def __len__(self) -> int:
        return len(self._entries)

    def init(self, root: int, value: int) -> None:
        """A spout has given out a root: XOR of its edges."""
        self._add(root, value, AckFlag.INIT)

    def ack(self, root: int, value: int) -> None:
        """A tuple is acked: XOR of its own edge and of those emitted for it."""
        self._add(root, value, 0)

    def fail(self, root: int) -> None:
        """A tuple of the tree has failed."""
        self._add(root, 0, AckFlag.FAILED)

    def value(self, root: int) -> int:
        """The root's value; 0 of an unknown one."""
        return self._entries.get(root, (0, 0))[0]

    def take(self) -> tuple[list[int], list[int]]:
        """The roots that are done, and those that have failed, since the last time."""
        done, failed = [], []
        for root, (value, flags) in self._entries.items():
            if not flags & AckFlag.INIT:
                continue
            if flags & AckFlag.FAILED:
                failed.append(root)
            elif value == 0:
                done.append(root)
        for root in (*done, *failed):
            del self._entries[root]
            self._given_out.add(root)
        return done, failed

    def _add(self, root: int, value: int, flags: int) -> None:
        if root in self._given_out:
            self.late += 1
            return
        entry = self._entries.setdefault(root, [0, 0])
        entry[0] ^= value
        entry[1] |= flags


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What became of the roots of a ledger.

    Attributes:
        acked: How many are done.
        unfinished: The others: failed, held, or never acked.
        flags: Their flags, of the kind `AckFlag`.
    """

    acked: int
    unfinished: Numbers
    flags: Flags


class AckLedger:
    """Columns of roots, values and flags: 17 bytes a tree, sorted by root.

    Messages wait until there are many. Then they are sorted; what is for a root that is known goes
    into its value where that stands, and new roots are woven in.
    """

    def __init__(self) -> None:
        self._roots: Numbers = np.empty(0, np.uint64)
        self._values: Numbers = np.empty(0, np.uint64)
        self._flags: Flags = np.empty(0, np.uint8)
        self._waiting: list[tuple[Numbers, Numbers, Flags]] = []
        self._waiting_rows = 0

    def __len__(self) -> int:
        self._merge()
        return len(self._roots)

    def add(self, roots: Numbers, values: Numbers, flags: Flags) -> None:
        """Take messages in: of each its root, the XOR of edges, and flags (`AckFlag`)."""
        self._waiting.append((roots, values, flags))
        self._waiting_rows += len(roots)
        if self._waiting_rows >= max(_MERGED_AT, len(self._roots) >> _MERGED_SHARE):
            self._merge()

    def verdicts(self) -> Verdicts:
        """What became of all roots, now that no more messages come.

        A root that was never initialised is among the unfinished.
        """
        self._merge()
        is_done = (self._values == 0) & (self._flags == AckFlag.INIT)
        left = ~is_done
        return Verdicts(
            acked=int(np.count_nonzero(is_done)),
            unfinished=self._roots[left],
            flags=self._flags[left],
        )

    def take(self) -> tuple[Numbers, Numbers]:
        """The roots that are done, and those that have failed; the others stay."""
        self._merge()
        known = (self._flags & AckFlag.INIT) != 0
        failed = known & ((self._flags & AckFlag.FAILED) != 0)
        done = known & (self._values == 0) & (self._flags == AckFlag.INIT)
        given = self._roots[done], self._roots[failed]
        left = ~(done | failed)
        self._roots, self._values = self._roots[left], self._values[left]
        self._flags = self._flags[left]
        return given

    def _merge(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting, self._waiting_rows = self._waiting, [], 0
        roots, values, flags = combined(
            *(np.concatenate(column) for column in zip(*waiting, strict=True))
        )
        del waiting
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
        self._roots = _woven(self._roots, old, roots[new], at)
        self._values = _woven(self._values, old, values[new], at)
        self._flags = _woven(self._flags, old, flags[new], at)


def _woven(column: Any, old: Bools, new_values: Any, at: Any) -> Any:
    """A column with new values at places, and those it has at the others."""
    woven = np.empty(len(old), column.dtype)
    woven[at] = new_values
    woven[old] = column
    return woven


def combined(roots: Numbers, values: Numbers, flags: Flags) -> tuple[Numbers, Numbers, Flags]:
    """One row a root: values XORed, flags joined; by root."""
    if not len(roots):
        return roots, values, flags
    order = np.argsort(roots)  # in no order of its own: XOR and OR do not mind
    roots = roots[order]
    first = np.flatnonzero(np.concatenate(([True], roots[1:] != roots[:-1])))
    return (
        roots[first],
        np.bitwise_xor.reduceat(values[order], first),
        np.bitwise_or.reduceat(flags[order], first),
    )


def acker_of(roots: Numbers, ackers: int) -> np.ndarray[Any, np.dtype[np.intp]]:
    """The acker that each root falls to: hash(root) mod ackers."""
    mixed = (roots * _MIX) >> np.uint64(32)
    return (mixed % np.uint64(ackers)).astype(np.intp)


def columns(roots: Iterable[Any]) -> tuple[Numbers, Numbers, Flags]:
    """The messages of roots of one task, as columns; untracked ones left out.

    `AckFlag.INIT` is not among the flags: the spout's task adds it to those it gave out.
    """
    tracked = [root for root in roots if root.is_tracked]
    ids = np.array([root.id for root in tracked], np.uint64)
    values = np.array([root.value for root in tracked], np.uint64)
    flags = np.array(
        [
            (AckFlag.FAILED if root.failure is not None else 0)
            | (AckFlag.HELD if root.is_held else 0)
            for root in tracked
        ],
        np.uint8,
    )
    return ids, values, flags
