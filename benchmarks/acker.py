"""The acker by itself: what it keeps of a pending tree, and how fast it takes acks.

    python -m benchmarks.acker

- **Memory**: trees are given out and not acked, each with 64 random bits as its id and as its
  edge; what a fresh process then holds more than before is divided by their number. The steady
  state is that of an acker at rest; the peaks are the most that the process ever held, while the
  trees were given out, and while each of them then got an ack that does not end it.
- **Speed**: three messages a tree, the spout's and two acks that end it, in random order and in
  chunks; then what became of all trees. One process, one core.

Prints a table; `measure` gives the figures as a list of name, value, unit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import psutil

from benchmarks.figures import print_figures
from sequitur.consumer.topology.settling.acker import Acker, AckFlag

if TYPE_CHECKING:
    from collections.abc import Iterator

    Numbers = np.ndarray[Any, np.dtype[np.uint64]]

PENDING: Final = 10_000_000
ROOTS: Final = 3_000_000
STORM_BYTES: Final = 20
"""What Storm's documentation says of its acker, about, and without the JVM around it."""
_CHUNK: Final = 1 << 16
_ROUNDS: Final = 3


def measure(pending: int = PENDING, roots: int = ROOTS) -> list[dict[str, Any]]:
    """Memory of `pending` trees, and the best speed over three messages of each of `roots`.

    Raises:
        RuntimeError: The outcomes are not the expected ones.
    """
    held = _in_fresh_process("memory", pending)
    rates = [_in_fresh_process("speed", roots)["acks_per_s"] for _ in range(_ROUNDS)]
    return [
        _figure("acker: bytes a pending tree", held["steady_bytes"] / pending, "B"),
        _figure("acker: the most while filling", held["filling_bytes"] / pending, "B"),
        _figure("acker: the most while acking", held["acking_bytes"] / pending, "B"),
        _figure("Storm's acker, as documented", STORM_BYTES, "B"),
        _figure("acker: acks taken in", max(rates) / 1e6, "M/s"),
    ]


def _figure(name: str, value: float, unit: str) -> dict[str, Any]:
    return {"name": name, "value": round(value, 2), "unit": unit}


def _in_fresh_process(what: str, trees: int) -> dict[str, float]:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.acker", what, str(trees)],
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, float] = json.loads(run.stdout)
    return found


def _memory(trees: int) -> dict[str, float]:
    """What an acker of pending trees holds, in bytes beyond what the process had before."""
    process = psutil.Process()
    for _ in _chunks(1, _CHUNK):  # what drawing a chunk takes is there before
        pass
    before = process.memory_info().rss
    acker = Acker()
    for roots, values in _chunks(1, trees):
        acker.add(roots, values, np.full(len(roots), AckFlag.INIT, np.uint8))
    filling = _peak_bytes() - before
    _check(len(acker), trees)
    steady = process.memory_info().rss - before
    for (roots, _), (_, values) in zip(_chunks(1, trees), _chunks(2, trees), strict=True):
        acker.add(roots, values, np.zeros(len(roots), np.uint8))
    _check(len(acker), trees)
    acking = _peak_bytes() - before
    outcomes = acker.outcomes()
    _check(outcomes.acked, 0)
    return {"steady_bytes": steady, "filling_bytes": filling, "acking_bytes": acking}


def _speed(trees: int) -> dict[str, float]:
    """How many messages a second an acker takes in, with the outcomes at the end."""
    random = np.random.default_rng(1)
    roots, first, second = (_bits(random, trees) for _ in range(3))
    order = random.permutation(3 * trees)
    told = np.concatenate([roots, roots, roots])[order]
    values = np.concatenate([first, first ^ second, second])[order]
    flags = np.repeat(np.array([AckFlag.INIT, 0, 0], np.uint8), trees)[order]
    began_s = time.perf_counter()
    acker = Acker()
    for at in range(0, len(told), _CHUNK):
        chunk = slice(at, at + _CHUNK)
        acker.add(told[chunk], values[chunk], flags[chunk])
    outcomes = acker.outcomes()
    seconds = time.perf_counter() - began_s
    _check(outcomes.acked, trees)
    _check(len(outcomes.unfinished), 0)
    return {"acks_per_s": len(told) / seconds}


def _chunks(seed: int, trees: int) -> Iterator[tuple[Numbers, Numbers]]:
    """Roots and values, the same ones for the same seed."""
    random = np.random.default_rng(seed)
    for at in range(0, trees, _CHUNK):
        rows = min(_CHUNK, trees - at)
        yield _bits(random, rows), _bits(random, rows)


def _bits(random: np.random.Generator, rows: int) -> Numbers:
    return random.integers(1, 1 << 64, rows, dtype=np.uint64)


def _check(found: int, wanted: int) -> None:
    if found != wanted:
        raise RuntimeError(f"the acker says {found}, where {wanted} is right")


def _peak_bytes() -> int:
    """The most that this process has held; the kernel keeps it."""
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


def main() -> None:
    """Measure and print, or be one of the processes that are measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=["memory", "speed"])
    parser.add_argument("trees", nargs="?", type=int, default=0)
    given = parser.parse_args()
    if given.what is not None:
        print(json.dumps((_memory if given.what == "memory" else _speed)(given.trees)))
        return
    print_figures("The acker by itself", measure())


if __name__ == "__main__":
    main()
