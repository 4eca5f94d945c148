"""Blocks of output partitions: few, whole, and the same halves for whoever writes or reads."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sequitur.pipelines.spark.partition_blocks import blocks_of, halves, packed


@pytest.mark.parametrize("cores", [1, 2, 16, 200])
@pytest.mark.parametrize("partitions", [1, 3, 4, 64, 500, 512, 1_000])
def test_tasks_do_not_grow_with_partitions(partitions: int, cores: int) -> None:
    blocks = blocks_of(partitions, cores)
    assert [number for block in blocks for number in block] == [*range(partitions)]
    assert min(partitions, 4 * cores) <= len(blocks) <= max(8 * cores, 1)


def test_row_groups_have_whole_blocks() -> None:
    """Of not more than so many rows, or one partition; larger blocks end where row groups end."""
    sizes = np.ones(20_000, np.int64)
    outputs = np.sort(np.random.default_rng(7).integers(500, size=20_000)).astype(np.int32)
    outputs[5_000:9_000] = outputs[5_000]
    outputs.sort()
    groups = list(packed(outputs, sizes, 700, 1 << 20))
    assert [group.start for group in groups] == [0, *(group.stop for group in groups[:-1])]
    assert groups[-1].stop == len(outputs)
    reaches = [(outputs[group][0], outputs[group][-1]) for group in groups]
    assert all(one[1] < other[0] for one, other in itertools.pairwise(reaches))
    for group, (first, last) in zip(groups, reaches, strict=True):
        assert group.stop - group.start <= 700 or first == last
    assert len(groups) < 3 * len(outputs) / 700
    for block in blocks_of(500, 2):
        assert not any(first < block.start <= last for first, last in reaches)
    assert list(packed(outputs[:0], sizes[:0], 700, 1 << 20)) == []


def test_row_groups_of_several_partitions_have_few_bytes() -> None:
    """One large row among small ones stands apart, where it is not of the same partition."""
    outputs, sizes = np.arange(64, dtype=np.int32), np.full(64, 10)
    sizes[21] = 5_000
    groups = [(group.start, group.stop) for group in packed(outputs, sizes, 700, 640)]
    assert groups == [(0, 16), (16, 20), (20, 21), (21, 22), (22, 24), (24, 32), (32, 64)]


def test_halves_are_those_of_row_groups() -> None:
    """The first is a power of two, so that blocks go on beginning at multiples of their size."""
    assert halves(range(500)) == (range(256), range(256, 500))
    assert halves(range(448, 500)) == (range(448, 480), range(480, 500))
    assert halves(range(6, 8)) == (range(6, 7), range(7, 8))
