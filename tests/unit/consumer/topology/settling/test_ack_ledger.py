"""The acker's columns: messages that come in several lots make what they make at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks import acker as bench
from sequitur.consumer.topology import AckFlag, AckLedger

_INIT, _FAILED = AckFlag.INIT, AckFlag.FAILED


def _add(ledger: AckLedger, *messages: tuple[int, int, int]) -> None:
    roots, values, flags = zip(*messages, strict=True)
    ledger.add(np.array(roots, np.uint64), np.array(values, np.uint64), np.array(flags, np.uint8))
    len(ledger)  # what waits is taken in


def _unfinished(ledger: AckLedger) -> dict[int, int]:
    verdicts = ledger.verdicts()
    return dict(zip(verdicts.unfinished.tolist(), verdicts.flags.tolist(), strict=True))


def test_new_roots_stand_between_known_ones() -> None:
    """Before the first, behind the last, side by side and in between; each with its own flags."""
    ledger = AckLedger()
    _add(ledger, (20, 1, _INIT), (40, 1, _INIT))
    _add(ledger, (50, 1, 0), (10, 1, _FAILED), (30, 1, _INIT), (31, 1, _INIT), (5, 1, _INIT))
    _add(ledger, (20, 2, _FAILED), (2**64 - 1, 1, _INIT), (0, 1, 0))
    assert _unfinished(ledger) == {
        0: 0,
        5: _INIT,
        10: _FAILED,
        20: _INIT | _FAILED,
        30: _INIT,
        31: _INIT,
        40: _INIT,
        50: 0,
        2**64 - 1: _INIT,
    }


def test_known_and_new_roots_of_a_lot_keep_apart() -> None:
    """A lot ends trees that came before, begins others, and repeats itself within."""
    ledger = AckLedger()
    _add(ledger, (2, 7, _INIT), (4, 6, _INIT), (6, 5, _INIT))
    _add(ledger, (6, 5, 0), (1, 3, _INIT), (2, 4, 0), (2, 3, 0), (1, 3, 0), (5, 1, _INIT))
    assert _unfinished(ledger) == {4: _INIT, 5: _INIT}
    assert ledger.verdicts().acked == 3


def test_columns_that_were_given_stay_as_they_are() -> None:
    """They are the caller's: later messages do not change them."""
    ledger = AckLedger()
    given = np.array([3], np.uint64), np.array([3], np.uint64), np.array([3], np.uint8)
    ledger.add(*given)
    len(ledger)
    _add(ledger, (3, 9, _FAILED))
    assert [column.tolist() for column in given] == [[3], [3], [3]]


@pytest.mark.parametrize(("what", "unit"), [("_memory", "_bytes"), ("_speed", "_per_s")])
def test_benchmark_checks_what_it_measures(what: str, unit: str) -> None:
    """With few trees as with many, over several chunks; its figures say what they count."""
    measured: Any = getattr(bench, what)(70_000)
    assert all(name.endswith(unit) for name in measured)
