"""The files of tuples that tasks send to tasks of later stages."""

from __future__ import annotations

import heapq
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from sequitur.consumer.topology.engine.emission import Sent, order_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.consumer.topology.step.batch import Sources

_TUPLES_AT_ONCE: Final = 1 << 12
_TUPLES_A_FRAME: Final = 1 << 6
"""So many tuples of each stretch of a file are read at once, of the `_TUPLES_AT_ONCE` it has."""


class ExchangeFile:
    """A task's tuples for tasks of later stages.

    Args:
        folder: Where it is written.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"tuples-{uuid4().hex}.pickle"
        self.index: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self._waiting: dict[tuple[str, int], list[Sent]] = {}

    def send(self, component: str, task: int, sent: Sent) -> None:
        """Take a tuple in."""
        waiting = self._waiting.setdefault((component, task), [])
        waiting.append(sent)
        if len(waiting) >= _TUPLES_AT_ONCE:
            self._flush(component, task)

    def close(self) -> None:
        """Write what is left."""
        for component, task in self._waiting:
            self._flush(component, task)

    def _flush(self, component: str, task: int) -> None:
        waiting = self._waiting[component, task]
        if not waiting:
            return
        self._waiting[component, task] = []
        waiting.sort(key=order_of)
        with self.path.open("ab") as file:
            begin = file.tell()
            for at in range(0, len(waiting), _TUPLES_A_FRAME):
                frame = [tuple(sent) for sent in waiting[at : at + _TUPLES_A_FRAME]]
                pickle.dump(frame, file, protocol=5)
            length = file.tell() - begin
        self.index.setdefault((component, task), []).append((begin, length))


def tuples_in_order(sources: Sources) -> Iterator[tuple[str, Sent]]:
    """Read tuples of some files in the order of their events, each with its component.

    Each stretch of a file is in order, so they are merged: of each only a frame is in memory.
    """
    return heapq.merge(
        *(
            _stretch(path, component, begin, begin + length)
            for path, blobs in sources
            for component, places in blobs.items()
            for begin, length in places
        ),
        key=lambda one: order_of(one[1]),
    )


def _stretch(path: str, component: str, begin: int, end: int) -> Iterator[tuple[str, Sent]]:
    while begin < end:
        with Path(path).open("rb") as file:
            file.seek(begin)
            frame = pickle.load(file)  # noqa: S301 - our own tasks' tuples; values are packed
            begin = file.tell()
        for sent in frame:
            yield component, Sent(*sent)
