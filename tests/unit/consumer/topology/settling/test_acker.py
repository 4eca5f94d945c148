"""The acker: XOR values, and what they say of trees."""

from __future__ import annotations

import numpy as np
import pytest

from sequitur.consumer.topology import Acker, AckFlag, AckLedger, acker_of

_STID1, _STID2, _TID1 = 0b1010, 0b1011, 0b1100


def test_the_worked_example_comes_to_zero() -> None:
    """A tuple anchored to two roots: both values end at 0, whichever ack comes first."""
    acker = Acker()
    acker.init(1, _STID1)
    acker.init(2, _STID2)
    acker.ack(1, _STID1 ^ _TID1)
    acker.ack(2, _STID2 ^ _TID1)
    assert (acker.value(1), acker.value(2)) == (0b1100, 0b1100)
    assert acker.take() == ([], [])
    acker.ack(1, _TID1)
    acker.ack(2, _TID1)
    assert (acker.value(1), acker.value(2)) == (0, 0)
    assert acker.take() == ([1, 2], [])


def test_the_worked_example_with_emits_told_on_the_way() -> None:
    """0110 and 0111 once the joined tuple is emitted, 1100 and 1100 once the spout's are acked."""
    acker = Acker()
    acker.init(1, _STID1)
    acker.init(2, _STID2)
    seen = []
    for first, second in [(_TID1, _TID1), (_STID1, _STID2), (_TID1, _TID1)]:
        acker.ack(1, first)
        acker.ack(2, second)
        seen.append((acker.value(1), acker.value(2)))
    assert seen == [(0b0110, 0b0111), (0b1100, 0b1100), (0b0000, 0b0000)]


def test_an_ack_may_come_before_the_init() -> None:
    """The root is done when both are there, and not before."""
    acker = Acker()
    acker.ack(1, 77)
    assert acker.take() == ([], [])
    acker.init(1, 77)
    assert acker.take() == ([1], [])


def test_a_root_without_edges_is_done_at_once() -> None:
    """Nobody reads the spout's tuple."""
    acker = Acker()
    acker.init(1, 0)
    assert acker.take() == ([1], [])


def test_a_failure_stays() -> None:
    """Also where it came first, and where all edges are acked behind it."""
    acker = Acker()
    acker.fail(1)
    assert acker.take() == ([], [])
    acker.init(1, 5)
    acker.ack(1, 5)
    assert acker.take() == ([], [1])


def test_what_comes_for_a_root_that_was_given_out_is_late() -> None:
    """It is counted, and starts nothing new."""
    acker = Acker()
    acker.init(1, 5)
    acker.fail(1)
    acker.take()
    acker.ack(1, 5)
    acker.fail(1)
    assert (acker.late, len(acker), acker.take()) == (2, 0, ([], []))


def test_a_ledger_names_those_that_are_not_done() -> None:
    """With what is known of each: failed, held, never acked, never given out."""
    ledger = AckLedger()
    init, failed, held = AckFlag.INIT, AckFlag.FAILED, AckFlag.HELD
    rows = [
        (1, 9, init), (1, 9, 0),  # done
        (2, 9, init), (2, 9, failed),
        (3, 9, init), (3, 9, held),
        (4, 9, init),
        (5, 0, 0),
    ]  # fmt: skip
    roots, values, flags = zip(*rows, strict=True)
    ledger.add(np.array(roots, np.uint64), np.array(values, np.uint64), np.array(flags, np.uint8))
    verdicts = ledger.verdicts()
    assert verdicts.acked == 1
    told = dict(zip(verdicts.unfinished.tolist(), verdicts.flags.tolist(), strict=True))
    assert told == {2: init | failed, 3: init | held, 4: init, 5: 0}


def test_an_empty_ledger_has_nothing_to_tell() -> None:
    """Neither done nor left."""
    ledger = AckLedger()
    assert (ledger.verdicts().acked, len(ledger)) == (0, 0)
    done, failed = ledger.take()
    assert (len(done), len(failed)) == (0, 0)


@pytest.mark.parametrize("ackers", [1, 2, 7])
def test_roots_fall_evenly_to_ackers(ackers: int) -> None:
    """Each root to one of them, always the same, also where roots are numbered on end."""
    roots = np.arange(1, 7001, dtype=np.uint64)
    found = acker_of(roots, ackers)
    assert (found == acker_of(roots, ackers)).all()
    counts = np.bincount(found, minlength=ackers)
    assert len(counts) == ackers
    assert counts.min() > 0.9 * 7000 / ackers
