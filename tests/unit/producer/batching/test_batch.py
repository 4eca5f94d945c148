"""What becomes of a batch: in life, and in a journal that may have no space."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from sequitur.kafka.record_batch import Stamp
from sequitur.producer.batching.batch import Batch, Dating, DatingEvent, InJournal, Life


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


_OURS, _SENDERS, _REFUSED = Dating.OURS, Dating.SENDERS, Dating.REFUSED
_REDATED, _REFUSED_AGAIN = Dating.REDATED, Dating.REFUSED_AGAIN


@pytest.mark.parametrize(
    ("dating", "after"),
    [  # GIVEN, REFUSED, KEPT, REPLACED, HALVED
        (_OURS, (_SENDERS, _REFUSED, None, None, _OURS)),
        (_SENDERS, (None, None, None, None, _SENDERS)),
        (_REFUSED, (None, _REFUSED, _OURS, _REDATED, None)),
        (_REDATED, (None, _REFUSED_AGAIN, None, None, _OURS)),
        (_REFUSED_AGAIN, (None, _REFUSED_AGAIN, _REDATED, _REDATED, None)),
    ],
)
def test_what_can_happen_to_the_timestamps_of_a_batch(
    dating: Dating, after: tuple[Dating | None, ...]
) -> None:
    """None is impossible: it raises, and the batch stays as it was."""
    for event, expected in zip(DatingEvent, after, strict=True):
        batch = Batch("t", 0, 0.0, 0, dating=dating)
        with pytest.raises(KeyError) if expected is None else nullcontext():
            batch.on_dating(event)
        assert batch.dating is (expected or dating)
        assert batch.is_misdated is (batch.dating in {_REFUSED, _REFUSED_AGAIN})


def test_a_senders_timestamps_are_never_replaced() -> None:
    batch = Batch("t", 0, 0.0, 0, dating=Dating.SENDERS, last_ms=7)
    with pytest.raises(KeyError):
        batch.redate(9)
    assert batch.newest_ms == 7
