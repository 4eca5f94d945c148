"""Items divided into portions: nothing is lost, and each is as large as it may be."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sequitur.base.portions import portions


def _is_even_beside(last: int, one: int) -> bool:
    return last % 2 == one % 2


@given(st.lists(st.integers(0, 9)), st.integers(1, 20), st.integers(1, 5), st.booleans())
def test_portions_are_bounded_and_no_two_of_them_could_be_one(
    sizes: list[int], most: int, most_items: int, sorts: bool
) -> None:
    is_beside = _is_even_beside if sorts else None
    found = [*portions(sizes, int, most, most_items=most_items, is_beside=is_beside)]
    assert [*itertools.chain(*found)] == sizes
    for one in found:
        assert len(one) == 1 or (len(one) <= most_items and sum(one) <= most)
        assert not sorts or len({size % 2 for size in one}) == 1
    for one, after in itertools.pairwise(found):
        is_full = len(one) == most_items or sum(one) + after[0] > most
        assert is_full or (sorts and not _is_even_beside(one[-1], after[0]))
