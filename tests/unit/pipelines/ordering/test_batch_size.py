"""How large batches are: small at first, then by what there is, and never by too many bytes."""

from __future__ import annotations

import itertools

import pytest

from sequitur.pipelines.ordering.batch_size import BatchSize


def _sizes(size: BatchSize, row_bytes: int, batches: int) -> list[int]:
    found = []
    for _ in range(batches):
        found.append(size.rows)
        size.take(size.rows, size.rows * row_bytes)
    return found


def test_first_batch_is_small_and_the_following_ones_grow() -> None:
    assert _sizes(BatchSize(2_000_000, 150), 150, 5) == [
        200_000,
        800_000,
        2_000_000,
        2_000_000,
        2_000_000,
    ]
    assert _sizes(BatchSize(50, 150), 150, 2) == [50, 50]


@pytest.mark.promise("order-rows-large-900")
def test_batches_of_large_rows_are_bounded_by_bytes() -> None:
    """By those that are about to be read, and then by those that were: a GiB of them."""
    sizes = _sizes(BatchSize(2_000_000, 900_000), 900_000, 9)
    assert 60 * 900_000 < sizes[0] * 900_000 <= 64 << 20
    assert sizes[-1] == (1 << 30) // 900_000
    assert all(after <= 4 * before for before, after in itertools.pairwise(sizes))


def test_batches_are_smaller_once_rows_are_larger() -> None:
    """And grow again behind these."""
    size = BatchSize(2_000_000, 0)
    size.take(200_000, 200_000 * 100)
    assert size.rows == 800_000
    size.take(10_000, 10_000 * 1_000_000)
    assert size.rows == 1_073
    size.take(0, 0)
    assert size.rows == 1_073
    size.take(1_073, 1_073 * 100)
    assert size.rows == 4_292
    size.take(1, 3 << 30)
    assert size.rows == 1
