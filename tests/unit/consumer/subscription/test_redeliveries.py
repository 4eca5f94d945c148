"""How often messages were delivered, as spans."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sequitur.consumer.subscription.redeliveries import MOST_SPANS, Redeliveries, RedeliverySpan

_COUNTS = st.dictionaries(st.integers(0, 40), st.integers(0, 3), max_size=12)


@given(
    counts=_COUNTS,
    begin=st.integers(0, 40),
    length=st.integers(0, 20),
    cut=st.integers(0, 40),
    fresh=st.integers(0, 90),
)
def test_each_count_is_found_again(
    counts: dict[int, int], begin: int, length: int, cut: int, fresh: int
) -> None:
    """Of what was named, and of what is out for the first time, whatever lies between them."""
    out = range(begin, begin + length)
    never = range(out.stop + fresh, 90)
    held = dict.fromkeys(never, 0) | dict.fromkeys(out, 1) | counts
    found = Redeliveries.of(counts, out=out, fresh=never)
    assert list(found.spans) == sorted(found.spans)
    assert all(one.stop <= two.first for one, two in pairwise(found.spans))
    among = found.among(range(100))
    assert {one: among.get(one, 0) for one in held} == held
    behind = found.behind(cut).among(range(100))
    assert behind == {one: times for one, times in among.items() if one >= cut}
    assert found.among(range(10, 20)) == {
        one: times for one, times in among.items() if 10 <= one < 20
    }


def test_what_is_out_for_the_first_time_is_one_span() -> None:
    """A million messages, three of which have failed."""
    found = Redeliveries.of({5: 2, 6: 2, 9: 0}, out=range(1_000_000))
    assert found.spans == ((0, 5, 1), (5, 7, 2), (7, 9, 1), (10, 1_000_000, 1))


def test_spans_end_where_the_next_ones_begin() -> None:
    """Behind what is out, beside what was never out, and where they are cut; none is empty."""
    assert Redeliveries.of({3: 2}, out=range(3)).spans == ((0, 3, 1), (3, 4, 2))
    found = Redeliveries.of({2: 1, 3: 1, 4: 3}, out=range(1), fresh=range(1, 9))
    assert found.spans == ((0, 1, 1), (2, 4, 1), (4, 5, 3))
    assert found.behind(1).spans == ((2, 4, 1), (4, 5, 3))
    assert found.behind(4).spans == ((4, 5, 3),)
    assert found.behind(5).spans == ()


def test_of_too_many_the_smallest_counts_are_forgotten() -> None:
    """Their messages come once more often; none is thought to have come more often than it has."""
    counts = {one: 9 if one % 5 == 0 else 1 + one % 2 for one in range(MOST_SPANS * 2)}
    found = Redeliveries.of(counts, out=range(0))
    assert len(found.spans) == MOST_SPANS
    among = found.among(range(MOST_SPANS * 2))
    assert all(among.get(one, 0) in {0, times} for one, times in counts.items())
    assert all(among[one] == 9 for one, times in counts.items() if times == 9)


def test_spans_follow_each_other() -> None:
    """What was read, and behind it what an earlier life had out."""
    one = Redeliveries((RedeliverySpan(0, 2, 1),))
    two = Redeliveries((RedeliverySpan(5, 7, 3),))
    assert one.followed_by(two).spans == (*one.spans, *two.spans)
    assert Redeliveries().followed_by(two) == two
