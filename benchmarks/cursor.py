"""A subscription's cursor beside pyroaring, sortedcontainers and a plain set of offsets.

    python -m benchmarks.cursor

- **Memory**: 1 of 100 offsets is not acked, at random; the ranges between are acked in random
  order. What a fresh process then holds more than before, divided by the holes. The plain set, of
  all acked offsets, is measured over a fiftieth of the span: it would not fit otherwise.
- **One far range**: ten billion offsets acked at once, behind one that is not.
- **Speed**: acks a second of processor time, each figure in a fresh process, the best of three.
  Single acks in random order leave 1 of 100 out. pyroaring keeps no mark-delete position in these:
  it only adds.

Each contender keeps the acked offsets. Prints a table and writes build/bench/cursor.json.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from itertools import count
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import psutil
from pyroaring import BitMap64
from sortedcontainers import SortedDict

from benchmarks.figures import print_figures
from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Offsets = np.ndarray[Any, np.dtype[np.int64]]

HOLES: Final = 1_000_000
MESSAGES: Final = 300_000
_SET_PART: Final = 50
_ONE_OF: Final = 100
_FAR: Final = 10_000_000_000
_CHUNK: Final = 10_000
_ROUNDS: Final = 3
_OUTPUT: Final = Path("build/bench")
_WAYS: Final = ("single", "batch", "in order", "cumulative", "ranges")


class Contender(Protocol):
    """What keeps acked offsets."""

    def ack(self, offset: int) -> None:
        """Ack one offset."""

    def ack_range(self, first: int, stop: int) -> None:
        """Ack offsets that lie together."""

    def ack_offsets(self, offsets: Offsets) -> None:
        """Ack many."""

    def ack_cumulative(self, offset: int) -> None:
        """Ack all up to an offset."""

    def __len__(self) -> int:
        """How many offsets are acked."""


class OurCursor:
    """The cursor, with all its checks and counts."""

    def __init__(self) -> None:
        self.cursor = Cursor(CursorIdentity("bench", "bench", 0))
        self.end = 1 << 40

    def ack(self, offset: int) -> None:
        """Ack one offset."""
        self.cursor.ack(offset, end=self.end)

    def ack_range(self, first: int, stop: int) -> None:
        """Ack offsets that lie together."""
        self.cursor.ack_range(first, stop, end=self.end)

    def ack_offsets(self, offsets: Offsets) -> None:
        """Ack many."""
        self.cursor.ack_offsets(offsets, end=self.end)

    def ack_cumulative(self, offset: int) -> None:
        """Ack all up to an offset."""
        self.cursor.ack_cumulative(offset, end=self.end)

    def __len__(self) -> int:
        return self.cursor.counts.consumed


class Roaring:
    """A bitmap of 64-bit numbers; run containers are made when it is told to."""

    def __init__(self) -> None:
        self.bitmap = BitMap64()

    def ack(self, offset: int) -> None:
        """Ack one offset."""
        self.bitmap.add(offset)

    def ack_range(self, first: int, stop: int) -> None:
        """Ack offsets that lie together."""
        self.bitmap.add_range(first, stop)

    def ack_offsets(self, offsets: Offsets) -> None:
        """Ack many."""
        self.bitmap.update(offsets.astype(np.uint64))

    def ack_cumulative(self, offset: int) -> None:
        """Ack all up to an offset."""
        self.bitmap.add_range(0, offset + 1)

    def __len__(self) -> int:
        return len(self.bitmap)


class PlainSet:
    """A set of all acked offsets."""

    def __init__(self) -> None:
        self.offsets: set[int] = set()
        self.reached = 0

    def ack(self, offset: int) -> None:
        """Ack one offset."""
        self.offsets.add(offset)

    def ack_range(self, first: int, stop: int) -> None:
        """Ack offsets that lie together."""
        self.offsets.update(range(first, stop))

    def ack_offsets(self, offsets: Offsets) -> None:
        """Ack many."""
        self.offsets.update(offsets.tolist())

    def ack_cumulative(self, offset: int) -> None:
        """Ack all up to an offset."""
        self.offsets.update(range(self.reached, offset + 1))
        self.reached = offset + 1

    def __len__(self) -> int:
        return len(self.offsets)


class SortedRanges:
    """Ranges in a sorted dictionary, by their first offset."""

    def __init__(self) -> None:
        self.stops: SortedDict[int, int] = SortedDict()

    def ack(self, offset: int) -> None:
        """Ack one offset."""
        self.ack_range(offset, offset + 1)

    def ack_range(self, first: int, stop: int) -> None:
        """Ack offsets that lie together."""
        stops, keys = self.stops, self.stops.keys()
        at = stops.bisect_right(first) - 1
        if at >= 0 and stops[keys[at]] >= first:
            first = keys[at]
            stop = max(stop, stops[first])
        at += 1
        while at < len(keys) and keys[at] <= stop:
            if keys[at] == first:
                at += 1
                continue
            stop = max(stop, stops.pop(keys[at]))
        stops[first] = stop

    def ack_offsets(self, offsets: Offsets) -> None:
        """Ack many."""
        for offset in offsets.tolist():
            self.ack(offset)

    def ack_cumulative(self, offset: int) -> None:
        """Ack all up to an offset."""
        self.ack_range(0, offset + 1)

    def __len__(self) -> int:
        return sum(stop - first for first, stop in self.stops.items())


CONTENDERS: Final[dict[str, type[Contender]]] = {
    "cursor": OurCursor,
    "pyroaring": Roaring,
    "sortedcontainers": SortedRanges,
    "set": PlainSet,
}


def measure(holes: int = HOLES, messages: int = MESSAGES) -> list[dict[str, Any]]:
    """Return all figures as name, value and unit.

    Raises:
        RuntimeError: A contender has acked other offsets than it was given.
    """
    figures = []
    for name in CONTENDERS:
        part = holes // _SET_PART if name == "set" else holes
        held = _in_fresh_process("memory", name, part)
        figures.append(_figure(f"{name}: bytes a hole", held["held_bytes"] / part, "B"))
    for name in CONTENDERS:
        if name != "set":
            far = _in_fresh_process("far", name, 0)["held_bytes"]
            figures.append(_figure(f"{name}: one far range", far / 1e6, "MB"))
    for way in _WAYS:
        for name in CONTENDERS:
            rounds = [_in_fresh_process(way, name, messages) for _ in range(_ROUNDS)]
            rate = max(found["acks_per_s"] for found in rounds)
            figures.append(_figure(f"{name}: {way}", rate / 1e6, "M acks/s"))
    return figures


def memory(name: str, holes: int) -> dict[str, float]:
    """Return what a contender holds of ranges that leave as many holes."""
    contender = CONTENDERS[name]()
    gc.collect()
    before = psutil.Process().memory_info().rss
    for first, stop in _spread_ranges(holes):
        contender.ack_range(first, stop)
    if isinstance(contender, Roaring):
        contender.bitmap.run_optimize()
        contender.bitmap.shrink_to_fit()
    gc.collect()
    found = {"held_bytes": float(psutil.Process().memory_info().rss - before)}
    _check(len(contender), _hole(holes) - (holes - 1))
    return found


def far(name: str) -> dict[str, float]:
    """Return what a contender holds of one long range behind an offset that is not acked."""
    contender = CONTENDERS[name]()
    contender.ack_range(0, 1)
    before = psutil.Process().memory_info().rss
    contender.ack_range(2, _FAR + 2)
    held = psutil.Process().memory_info().rss - before
    _check(len(contender), _FAR + 1)
    return {"held_bytes": float(held)}


def speed(way: str, name: str, messages: int) -> dict[str, float]:
    """Return how many acks a second a contender takes."""
    random = np.random.default_rng(1)
    contender = CONTENDERS[name]()
    kept = np.delete(np.arange(messages), np.arange(7, messages, _ONE_OF))
    shuffled = random.permutation(kept)
    seconds = 0.0
    if way == "ranges":
        # A range of a set is as many acks as it has offsets.
        holes = messages // _ONE_OF if name == "set" else messages
        ranges = [list(pair) for pair in _spread_ranges(holes)]
        acks, expected = len(ranges), _hole(holes) - (holes - 1)
        seconds = _timed(_call(contender.ack_range, ranges))
    else:
        acks = expected = len(kept)
        offsets = shuffled if way in {"single", "batch"} else np.arange(len(kept))
        ack = contender.ack_cumulative if way == "cumulative" else contender.ack
        for begin in range(0, len(offsets), _CHUNK):
            part = offsets[begin : begin + _CHUNK]
            if way == "batch":
                seconds += _timed(_call(contender.ack_offsets, [[part]]))
            else:
                seconds += _timed(_call(ack, part[:, None].tolist()))
    _check(len(contender), expected)
    return {"acks_per_s": acks / seconds}


def _call(ack: Callable[..., None], arguments: list[list[Any]]) -> Callable[[], None]:
    def each() -> None:
        for given in arguments:
            ack(*given)

    return each


def _timed(call: Callable[[], None]) -> float:
    began_s = time.process_time()
    call()
    return time.process_time() - began_s


def _spread_ranges(holes: int) -> Iterator[tuple[int, int]]:
    """Give the ranges before each hole in an order without pattern.

    Each is worked out when it is asked for: a table of them, once freed, would be memory that a
    contender could take without the process growing.
    """
    step = next(step for step in count(holes * 5 // 8) if gcd(step, holes) == 1)
    for place in range(holes):
        number = place * step % holes
        first = _hole(number) + 1 if number else 0
        stop = _hole(number + 1)
        if first < stop:
            yield first, stop


def _hole(number: int) -> int:
    """Return which offset is not acked, of the hundred that begin at `number` hundred."""
    return number * _ONE_OF + (number * 2_654_435_761 >> 7) % _ONE_OF


def _figure(name: str, value: float, unit: str) -> dict[str, Any]:
    return {"name": name, "value": round(value, 3), "unit": unit}


def _check(found: int, wanted: int) -> None:
    if found != wanted:
        raise RuntimeError(f"{found} offsets are acked, where {wanted} is right")


def _in_fresh_process(what: str, name: str, count: int) -> dict[str, float]:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.cursor", what, name, str(count)],
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, float] = json.loads(run.stdout)
    return found


def main() -> None:
    """Measure, print and write; or be one of the processes that are measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=["memory", "far", *_WAYS])
    parser.add_argument("name", nargs="?", choices=list(CONTENDERS))
    parser.add_argument("count", nargs="?", type=int, default=0)
    given = parser.parse_args()
    if given.what == "memory":
        print(json.dumps(memory(given.name, given.count)))
    elif given.what == "far":
        print(json.dumps(far(given.name)))
    elif given.what is not None:
        print(json.dumps(speed(given.what, given.name, given.count)))
    else:
        figures = measure()
        print_figures("A cursor and what else could keep its offsets", figures)
        _OUTPUT.mkdir(parents=True, exist_ok=True)
        (_OUTPUT / "cursor.json").write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
