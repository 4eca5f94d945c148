"""Output partitions in blocks: what one task works at, and what stands together in files.

Blocks are halves of halves: one begins at a multiple of its size, which is a power of two. So a row
group that holds a block belongs to one larger block, and a task that works at that one reads no row
group in vain, however many tasks there are when it is read.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    Ints = np.ndarray[Any, np.dtype[np.signedinteger[Any]]]

_ALL: Final = 1 << 31
_TASKS_A_CORE: Final = 4
"""A task costs some milliseconds; where there are more tasks than cores, none waits long for one
that has more rows than others."""


def blocks_of(partitions: int, cores: int) -> list[range]:
    """Return the blocks for tasks: a few for each core, with at least one partition each."""
    size = 1
    while -(-partitions // (2 * size)) >= _TASKS_A_CORE * cores:
        size *= 2
    return [range(first, min(first + size, partitions)) for first in range(0, partitions, size)]


def halves(block: range) -> tuple[range, range]:
    """Cut a block of more than one partition in two."""
    half = 1 << (len(block) - 1).bit_length() - 1
    return block[:half], block[half:]


def stretches(numbers: Ints) -> Iterator[tuple[int, slice]]:
    """Yield each number with the stretch in which it stands side by side."""
    bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    for begin, end in itertools.pairwise(bounds):
        if begin < end:
            yield int(numbers[begin]), slice(begin, end)


def packed(outputs: Ints, sizes: Ints, most_rows: int, most_bytes: int) -> Iterator[slice]:
    """Cut rows into blocks of at most so many rows and bytes, or of one partition."""
    reached = np.concatenate(([0], np.cumsum(sizes)))
    waiting = [(0, _ALL, 0, len(outputs))]
    while waiting:
        first, size, begin, end = waiting.pop()
        if begin == end:
            continue
        is_small = end - begin <= most_rows and reached[end] - reached[begin] <= most_bytes
        if is_small or outputs[begin] == outputs[end - 1]:
            yield slice(begin, end)
            continue
        size //= 2
        middle = begin + int(np.searchsorted(outputs[begin:end], first + size))
        waiting += [(first + size, size, middle, end), (first, size, begin, middle)]
