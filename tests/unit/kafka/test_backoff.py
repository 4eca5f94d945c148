"""The wait between attempts grows as KIP-580 says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.base.retry import Backoff


@pytest.mark.promise("in-fixed-wait-attempts")
@pytest.mark.parametrize(
    ("failures", "expected_ms"), [(1, 100), (2, 200), (3, 400), (4, 800), (5, 1000), (99, 1000)]
)
def test_the_wait_doubles_up_to_its_maximum(failures: int, expected_ms: float) -> None:
    assert Backoff().delay_ms(failures, 0.5) == pytest.approx(expected_ms)


@pytest.mark.parametrize(
    ("factor", "expected_ms"), [(1, 10), (1.5, 22.5), (10, 1_000), (1e300, 5_000)]
)
def test_the_factor_is_what_each_wait_grows_by(factor: float, expected_ms: float) -> None:
    """After the third failure; a factor beyond all floats is no error."""
    backoff = Backoff(initial_ms=10, maximum_ms=5_000, jitter=0, factor=factor)
    assert backoff.delay_ms(3) == pytest.approx(expected_ms)


@pytest.mark.parametrize("failures", [1, 64, 10**6])
def test_a_wait_of_nothing_does_not_grow(failures: int) -> None:
    assert Backoff(initial_ms=0).delay_ms(failures) == 0


@given(st.integers(1, 10**9), st.floats(0, 1, exclude_max=True))
def test_the_jitter_is_a_fifth_either_way(failures: int, random: float) -> None:
    """No wait is outside 80 % to 120 % of its middle."""
    backoff = Backoff()
    middle = backoff.delay_ms(failures, 0.5)
    assert 0.8 * middle <= backoff.delay_ms(failures, random) <= 1.2 * middle + 1e-9
