"""What becomes of a batch: in life, and in a journal that may have no space."""

from __future__ import annotations

import pytest

from sequitur.kafka.record_batch import Stamp
from sequitur.producer.batching.batch import Batch, InJournal, Life


def test_the_order_of_its_end_and_of_its_outcomes_does_not_matter() -> None:
    """After `delivery_timeout` its events are told first; one given up has ended first."""
    overdue, given_up = Batch("t", 0, 0.0, 0), Batch("t", 0, 0.0, 0)
    overdue.complete()
    given_up.end()
    assert (overdue.life, given_up.life) == (Life.TOLD, Life.ENDED)
    assert (overdue.ended, given_up.completed) == (False, False)
    overdue.end()
    given_up.complete()
    assert overdue.life is given_up.life is Life.OVER
    given_up.end()
    assert given_up.life is Life.OVER


@pytest.mark.parametrize(
    ("waiting", "pieced", "holds"),
    [
        (True, 0, InJournal.WAITING),
        (False, 7, InJournal.PIECES),
        (False, 0, InJournal.NOTHING),
    ],
)
def test_without_space_the_journal_holds_what_it_held(
    pieced: int, holds: InJournal, *, waiting: bool
) -> None:
    batch = Batch("t", 0, 0.0, 0, pieced=pieced)
    batch.write_numbers(Stamp(1, 0, 5))
    assert (batch.is_kept, batch.journaled) == (True, Stamp(1, 0, 5))
    batch.take_back(waiting=waiting)
    assert (batch.in_journal, batch.journaled) == (holds, None)
    assert batch.is_kept is (holds is not InJournal.NOTHING)
