"""The rules of the sequencer, one at a time; the machine in tests/property mixes them."""

from __future__ import annotations

import pytest

from producer._answers import Answer
from producer._sequencer import (
    MAX_EPOCH,
    MAX_SEQUENCE,
    Identity,
    Sequencer,
    Slot,
    State,
    Verdict,
    following,
)

_ID = Identity(1, 0)


def _sequencer(*, next_sequence: int = 0) -> Sequencer[str]:
    return Sequencer(_ID, next_sequence=next_sequence, confirmed=True)


def _sent(sequencer: Sequencer[str], *names: str) -> list[Slot[str]]:
    slots = []
    for name in names:
        slot = sequencer.admit(name, 10)
        sequencer.sent(slot)
        slots.append(slot)
    return slots


def _wants(sequencer: Sequencer[str]) -> str:
    assert not (sequencer.query_due and sequencer.renewal_due)
    return "query" if sequencer.query_due else "renewal" if sequencer.renewal_due else ""


@pytest.mark.parametrize(
    ("sequence", "count", "expected"),
    [(0, 1, 1), (MAX_SEQUENCE, 1, 0), (MAX_SEQUENCE - 2, 5, 2), (5, 0, 5)],
)
def test_zero_follows_the_largest_sequence(sequence: int, count: int, expected: int) -> None:
    """The numbers wrap as Kafka's do, and never become negative."""
    assert following(sequence, count) == expected


def test_a_batch_may_lie_across_the_wrap() -> None:
    """Its last sequence is small, and the next batch goes on from there."""
    sequencer = _sequencer(next_sequence=MAX_SEQUENCE - 4)
    (slot,) = _sent(sequencer, "a")
    assert slot.last_sequence == 4
    assert sequencer.next_sequence == 5


def test_at_most_five_batches_are_in_flight() -> None:
    """The broker remembers five; a sixth could not be told from a repeat."""
    sequencer = _sequencer()
    _sent(sequencer, "a", "b", "c", "d", "e")
    assert not sequencer.has_room


def test_the_first_batch_of_an_identity_goes_alone() -> None:
    """A broker without state takes any sequence: a second must wait until it has state."""
    sequencer: Sequencer[str] = Sequencer(_ID)
    (first,) = _sent(sequencer, "a")
    assert not sequencer.has_room
    sequencer.on_answer(first, Answer.PERSISTED)
    _sent(sequencer, "b")
    assert sequencer.has_room


def test_a_rested_partition_goes_alone_again() -> None:
    """After a long idle time the broker may have forgotten the producer."""
    sequencer = _sequencer()
    sequencer.rest()
    _sent(sequencer, "a")
    assert not sequencer.has_room


def test_nothing_overtakes_a_failed_batch() -> None:
    """While a batch waits to be sent again, none is admitted; it goes first, as it was."""
    sequencer = _sequencer()
    first, second = _sent(sequencer, "a", "b")
    assert sequencer.on_answer(first, Answer.RETRIABLE) is Verdict.RETRY
    assert not sequencer.has_room
    assert sequencer.on_answer(second, Answer.OUT_OF_ORDER) is Verdict.RETRY
    assert sequencer.next_to_send() is first
    sequencer.sent(first)
    assert sequencer.next_to_send() is second
    assert (first.base_sequence, second.base_sequence) == (0, 10)


def test_a_lost_answer_is_asked_for_again_under_the_same_number() -> None:
    """The batch may be in the log: only its own number tells the broker that it is a repeat."""
    sequencer = _sequencer()
    (slot,) = _sent(sequencer, "a")
    assert sequencer.on_answer(slot, Answer.UNKNOWN) is Verdict.RETRY
    assert slot.maybe
    sequencer.sent(slot)
    assert slot.base_sequence == 0
    assert sequencer.on_answer(slot, Answer.DUPLICATE) is Verdict.PERSISTED
    assert sequencer.is_empty


def test_a_refused_batch_has_those_behind_it_renumbered() -> None:
    """Its number will never be taken, so theirs would not be either."""
    sequencer = _sequencer()
    first, second, third = _sent(sequencer, "a", "b", "c")
    assert sequencer.on_answer(first, Answer.REFUSED) is Verdict.REFUSED
    assert _wants(sequencer) == ""
    assert sequencer.on_answer(second, Answer.OUT_OF_ORDER) is Verdict.RENEW
    assert sequencer.on_answer(third, Answer.OUT_OF_ORDER) is Verdict.RENEW
    assert sequencer.next_to_send() is None
    assert _wants(sequencer) == "renewal"
    sequencer.renew(Identity(1, 1))
    assert [(s.batch, s.base_sequence) for s in sequencer.slots] == [("b", 0), ("c", 10)]
    assert sequencer.next_sequence == 20


def test_a_refused_only_batch_burns_its_number_too() -> None:
    """Going on with the next number wedges the partition for good (aiokafka #1017)."""
    sequencer = _sequencer()
    (slot,) = _sent(sequencer, "a")
    sequencer.on_answer(slot, Answer.REFUSED)
    assert not sequencer.has_room
    assert sequencer.renewal_due
    sequencer.renew(Identity(1, 1))
    assert sequencer.admit("b", 1).base_sequence == 0


def test_batches_before_a_refused_one_keep_their_numbers() -> None:
    """They finish under the old identity before the renewal."""
    sequencer = _sequencer()
    first, second, third = _sent(sequencer, "a", "b", "c")
    sequencer.on_answer(first, Answer.RETRIABLE)
    assert sequencer.on_answer(second, Answer.REFUSED) is Verdict.REFUSED
    sequencer.on_answer(third, Answer.OUT_OF_ORDER)
    assert _wants(sequencer) == ""
    assert sequencer.next_to_send() is first
    sequencer.sent(first)
    sequencer.on_answer(first, Answer.PERSISTED)
    assert _wants(sequencer) == "renewal"


def test_a_batch_that_is_too_large_is_replaced_by_its_halves() -> None:
    """They and all behind them are numbered anew, in the old order."""
    sequencer = _sequencer()
    first, second = _sent(sequencer, "ab", "c")
    assert sequencer.on_answer(first, Answer.TOO_LARGE) is Verdict.SPLIT
    sequencer.replace(first, [("a", 5), ("b", 5)])
    sequencer.on_answer(second, Answer.OUT_OF_ORDER)
    sequencer.renew(Identity(1, 1))
    assert [(s.batch, s.base_sequence) for s in sequencer.slots] == [("a", 0), ("b", 5), ("c", 10)]


@pytest.mark.parametrize("answer", [Answer.OUT_OF_ORDER, Answer.FORGOTTEN, Answer.FENCED])
def test_a_head_that_the_broker_cannot_place_is_renewed(answer: Answer) -> None:
    """Surely not in the log, so it is renumbered without a question."""
    sequencer = _sequencer()
    (slot,) = _sent(sequencer, "a")
    assert sequencer.on_answer(slot, answer) is Verdict.RENEW
    assert sequencer.renewal_due
    assert sequencer.needs_new_id is (answer is Answer.FENCED)


@pytest.mark.parametrize(("last_sequence", "found"), [(-1, 0), (9, 1), (19, 2), (25, 2)])
def test_the_broker_is_asked_before_a_doubtful_batch_is_renumbered(
    last_sequence: int, found: int
) -> None:
    """What its last sequence covers is in the log; only the rest is sent again."""
    sequencer = _sequencer()
    slots = _sent(sequencer, "a", "b")
    for slot in slots:
        sequencer.on_answer(slot, Answer.UNKNOWN)
    sequencer.sent(slots[0])
    sequencer.on_answer(slots[0], Answer.OUT_OF_ORDER)
    assert _wants(sequencer) == "query"
    persisted = sequencer.on_described(last_sequence & MAX_SEQUENCE)
    assert persisted == slots[:found]
    assert sequencer.renewal_due
    assert sequencer.slots == slots[found:]


def test_a_doubtful_batch_that_nobody_knows_of_is_told_as_lost() -> None:
    """Renumbering it could double it: its fate stays open, and is said to be."""
    sequencer = _sequencer()
    (slot,) = _sent(sequencer, "a")
    sequencer.on_answer(slot, Answer.UNKNOWN)
    sequencer.sent(slot)
    sequencer.on_answer(slot, Answer.FORGOTTEN)
    assert sequencer.on_described(None) == []
    assert sequencer.query_due
    assert sequencer.drop(slot) is Verdict.LOST
    assert sequencer.renewal_due


def test_a_doubtful_batch_found_missing_from_the_log_is_renumbered() -> None:
    """After a look into the log there is no doubt left."""
    sequencer = _sequencer()
    (slot,) = _sent(sequencer, "a")
    sequencer.on_answer(slot, Answer.UNKNOWN)
    sequencer.sent(slot)
    sequencer.on_answer(slot, Answer.FORGOTTEN)
    sequencer.absolve()
    assert sequencer.renewal_due
    sequencer.renew(Identity(2, 0))
    assert sequencer.slots == [slot]


def test_a_doubtful_batch_refused_later_is_not_called_refused() -> None:
    """An earlier attempt may have got in before the broker's limit was lowered."""
    sequencer = _sequencer()
    (slot,) = _sent(sequencer, "a")
    sequencer.on_answer(slot, Answer.UNKNOWN)
    sequencer.sent(slot)
    assert sequencer.on_answer(slot, Answer.TOO_LARGE) is Verdict.LOST


def test_an_order_broken_behind_the_head_is_not_held_against_a_new_head() -> None:
    """The answer was given while another batch was before it; it says nothing of this one."""
    sequencer = _sequencer()
    first, second = _sent(sequencer, "a", "b")
    sequencer.on_answer(first, Answer.PERSISTED)
    assert sequencer.on_answer(second, Answer.OUT_OF_ORDER) is Verdict.RETRY
    assert second.state is State.READY


def test_epochs_end_and_then_a_new_id_is_needed() -> None:
    """The largest epoch has no successor."""
    assert Identity(3, MAX_EPOCH - 1).bumped() == Identity(3, MAX_EPOCH)
    assert Identity(3, MAX_EPOCH).bumped() is None


@pytest.mark.parametrize("window", [0, 6])
def test_a_window_that_the_broker_does_not_cover_is_refused(window: int) -> None:
    """Beyond five repeats get in."""
    with pytest.raises(ValueError, match="window"):
        Sequencer(_ID, window=window)
