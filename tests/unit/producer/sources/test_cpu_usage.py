"""CPU usage from the kernel's counters."""

from __future__ import annotations

import pytest

from sequitur.producer.sources.cpu import UsageMeter


def test_the_first_reading_has_nothing_to_compare_with() -> None:
    """It says nothing is used, one value a cpu."""
    assert UsageMeter().usages([(5.0, 1.0), (9.0, 9.0)]) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("total", "idle", "expected"),
    [(0.02, 0.01, 50.0), (0.01, 0.0, 100.0), (0.01, 0.01, 0.0), (0.03, 0.01, 66.67)],
)
def test_usage_is_the_share_that_was_not_idle(total: float, idle: float, expected: float) -> None:
    """Between two readings, in per cent."""
    meter = UsageMeter()
    meter.usages([(100.0, 50.0)])
    assert meter.usages([(100.0 + total, 50.0 + idle)]) == pytest.approx([expected], abs=0.01)


def test_between_two_ticks_the_last_value_holds() -> None:
    """The counters move every 10 ms; a sample in between has no new answer."""
    meter = UsageMeter()
    meter.usages([(1.0, 1.0)])
    meter.usages([(1.01, 1.0)])
    assert meter.usages([(1.01, 1.0)]) == [100.0]


def test_idle_that_runs_ahead_of_the_total_is_no_negative_usage() -> None:
    """The kernel does not read all counters at one instant."""
    meter = UsageMeter()
    meter.usages([(1.0, 1.0)])
    assert meter.usages([(1.01, 1.02)]) == [0.0]


def test_a_cpu_that_is_plugged_in_starts_anew() -> None:
    """Another number of cpus cannot be compared."""
    meter = UsageMeter()
    meter.usages([(1.0, 1.0)])
    assert meter.usages([(2.0, 1.0), (5.0, 5.0)]) == [0.0, 0.0]
