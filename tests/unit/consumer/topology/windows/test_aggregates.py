"""What windows compute of their events: exactly, whatever the order."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.errors import TopologyBuildError
from sequitur.windows import Aggregate, Collect, Count, Max, Mean, Min, Quantiles, Reduce, Sum, Top

if TYPE_CHECKING:
    from collections.abc import Sequence

_numbers = st.lists(
    st.one_of(
        st.floats(-1e290, 1e290),
        st.integers(-(10**30), 10**30),
        st.sampled_from((0.1, 1e16, -1e16)),
    ),
    min_size=1,
)


def kept(state: Any) -> Any:
    """Return a state as the next call finds it."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(state), strict=False)


def in_pieces(aggregate: Aggregate, *pieces: Sequence[Any]) -> Any:
    """Return the result of several states that are merged, each kept between two values."""
    total = aggregate.begin()
    for piece in pieces:
        state = aggregate.begin()
        for value in piece:
            state = kept(aggregate.add(state, value))
        total = kept(aggregate.merge(total, state))
    return aggregate.result(total)


@pytest.mark.promise("windows-exact")
@given(numbers=_numbers, cut=st.integers(0, 100))
def test_a_sum_and_a_mean_are_rounded_once(numbers: list[float], cut: int) -> None:
    exact = sum(map(Fraction, numbers), Fraction())
    for several in (numbers, numbers[::-1]):
        pieces = several[:cut], several[cut:]
        assert in_pieces(Sum(), *pieces) == Sum().of_all(several)
        assert Fraction(Sum().of_all(several)) in {exact, Fraction(float(exact))}
        assert in_pieces(Mean(), *pieces) == float(exact / len(numbers))


@pytest.mark.parametrize(
    ("numbers", "total"),
    [
        ([0.1] * 10, 1.0), ([1e16, 1.0, -1e16], 1.0), ([1, 2, 3], 6), ([True, False, True], 2),
        ([2**62, 2**62, 0.5], float(2**63)), ([], 0), ([1, 0.5], 1.5),
    ],
)  # fmt: skip
def test_sums(numbers: list[float], total: float) -> None:
    found = in_pieces(Sum(), numbers)
    assert (found, type(found)) == (total, type(total))


@pytest.mark.promise("windows-exact")
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1e291, 10**300])
@pytest.mark.parametrize("aggregate", [Sum(), Mean(), Quantiles(None, 0.5)])
def test_what_no_sum_can_hold_is_refused(aggregate: Aggregate, number: float) -> None:
    with pytest.raises(ValueError, match="1e\\+290"):
        aggregate.add(aggregate.begin(), number)


@pytest.mark.parametrize("aggregate", [Sum(), Mean(), Quantiles(None, 0.5)])
def test_text_is_no_number(aggregate: Aggregate) -> None:
    with pytest.raises(TypeError):
        aggregate.add(aggregate.begin(), "1")


@pytest.mark.parametrize("aggregate", [Min(), Max(), Top(2)])
def test_nan_is_not_compared(aggregate: Aggregate) -> None:
    with pytest.raises(ValueError, match="NaN"):
        aggregate.add(aggregate.begin(), math.nan)
    with pytest.raises(ValueError, match="NaN"):
        aggregate.add(aggregate.add(aggregate.begin(), 1.0), math.nan)


@pytest.mark.promise("windows-exact")
@given(numbers=_numbers, cut=st.integers(0, 100), error=st.sampled_from((0.01, 0.05, 0.3)))
def test_quantiles_are_within_the_error(numbers: list[float], cut: int, error: float) -> None:
    asked = 0.0, 0.25, 0.5, 0.99, 1.0
    found = in_pieces(Quantiles(None, *asked, error=error), numbers[:cut], numbers[cut:])
    rising = sorted(numbers)
    for quantile, one in zip(asked, found, strict=True):
        exact = rising[math.floor(quantile * (len(rising) - 1))]
        assert abs(one - exact) <= abs(exact) * error * (1 + 1e-9) + 1e-290


def test_quantiles_of_nothing_are_none() -> None:
    assert in_pieces(Quantiles(None, 0.5, 0.9)) == [None, None]


@given(values=st.lists(st.integers(-5, 5)), cut=st.integers(0, 100))
def test_the_others_beside_plain_python(values: list[int], cut: int) -> None:
    pieces = values[:cut], values[cut:]
    assert in_pieces(Count(), *pieces) == len(values)
    assert in_pieces(Collect(), *pieces) == values
    assert in_pieces(Min(), *pieces) == min(values, default=None)
    assert in_pieces(Max(), *pieces) == max(values, default=None)
    assert in_pieces(Top(3), *pieces) == sorted(values, reverse=True)[:3]
    assert in_pieces(Reduce(_last), *pieces) == (values[-1] if values else None)


def test_of_equal_values_the_first_stays() -> None:
    assert in_pieces(Top(2), [[2, "a"], [1, "b"], [2, "c"]]) == [[2, "c"], [2, "a"]]
    assert [type(one) for one in in_pieces(Top(2), [1, 1.0, True])] == [int, float]
    assert type(in_pieces(Min(), [1.0, 1])) is type(in_pieces(Max(), [1.0, 1])) is float


def test_what_is_missing_is_left_out() -> None:
    assert Mean().of_all([None, 1, None, 2]) == 1.5


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (lambda: Quantiles("u"), "give some"),
        (lambda: Quantiles("u", 1.5), "from 0 to 1"),
        (lambda: Quantiles("u", 0.5, error=0), "0 < error"),
        (lambda: Top(0, "u"), "1 or more"),
    ],
)
def test_wrong_arguments_are_refused(make: Any, wrong: str) -> None:
    with pytest.raises(TopologyBuildError, match=wrong):
        make()


def _last(before: Any, value: Any) -> Any:
    del before
    return value
