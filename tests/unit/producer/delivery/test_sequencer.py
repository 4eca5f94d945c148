"""The rules of the sequencer, one at a time; the machine in tests/property mixes them."""

from __future__ import annotations

import pytest

from sequitur.kafka.error_codes import Answer
from sequitur.kafka.identity import MAX_EPOCH, Identity
from sequitur.kafka.record_format import MAX_SEQUENCE, following
from sequitur.producer.delivery.sequencer import Sequencer, State, Verdict
from tests.support.sequencers import (
    ID,
    NEXT,
    confirmed_sequencer,
    has_room,
    in_a_next_life,
    send,
    wants,
)


@pytest.mark.promise("in-sequence-goes-negative")
@pytest.mark.parametrize(
    ("sequence", "count", "expected"),
    [(0, 1, 1), (MAX_SEQUENCE, 1, 0), (MAX_SEQUENCE - 2, 5, 2), (5, 0, 5)],
)
def test_zero_follows_the_largest_sequence(sequence: int, count: int, expected: int) -> None:
    """The numbers wrap as Kafka's do, and never become negative."""
    assert following(sequence, count) == expected


def test_a_batch_may_lie_across_the_wrap() -> None:
    """Its last sequence is small, and the next batch goes on from there."""
    sequencer = confirmed_sequencer(next_sequence=MAX_SEQUENCE - 4)
    (slot,) = send(sequencer, "a")
    assert slot.last_sequence == 4
    assert sequencer.next_sequence == 5


def test_at_most_five_batches_are_in_flight() -> None:
    """The broker remembers five; a sixth could not be told from a repeat."""
    sequencer = confirmed_sequencer()
    send(sequencer, "a", "b", "c", "d", "e")
    assert not has_room(sequencer)


def test_the_first_batch_of_an_identity_goes_alone() -> None:
    """A broker without state takes any sequence: a second must wait until it has state."""
    sequencer: Sequencer[str] = Sequencer(ID)
    (first,) = send(sequencer, "a")
    assert not has_room(sequencer)
    sequencer.on_answer(first, Answer.PERSISTED)
    send(sequencer, "b")
    assert has_room(sequencer)


def test_a_rested_partition_goes_alone_again() -> None:
    """After a long idle time the broker may have forgotten the producer."""
    sequencer = confirmed_sequencer()
    sequencer.on_silence()
    send(sequencer, "a")
    assert not has_room(sequencer)


def test_nothing_overtakes_a_failed_batch() -> None:
    """While a batch waits to be sent again, none is admitted; it goes first, as it was."""
    sequencer = confirmed_sequencer()
    first, second = send(sequencer, "a", "b")
    assert sequencer.on_answer(first, Answer.RETRIABLE) is Verdict.RETRY
    assert not has_room(sequencer)
    assert sequencer.on_answer(second, Answer.OUT_OF_ORDER) is Verdict.RETRY
    assert sequencer.next_to_send() is first
    sequencer.sent(first)
    assert sequencer.next_to_send() is second
    assert (first.base_sequence, second.base_sequence) == (0, 10)


def test_a_lost_answer_is_asked_for_again_under_the_same_number() -> None:
    """The batch may be in the log: only its own number tells the broker that it is a repeat."""
    sequencer = confirmed_sequencer()
    (slot,) = send(sequencer, "a")
    assert sequencer.on_answer(slot, Answer.UNKNOWN) is Verdict.RETRY
    assert slot.possibly_appended
    sequencer.sent(slot)
    assert slot.base_sequence == 0
    assert sequencer.on_answer(slot, Answer.DUPLICATE) is Verdict.PERSISTED
    assert sequencer.is_empty


def test_a_refused_batch_has_those_behind_it_renumbered() -> None:
    """Its number will never be taken, so theirs would not be either."""
    sequencer = confirmed_sequencer()
    first, second, third = send(sequencer, "a", "b", "c")
    assert sequencer.on_answer(first, Answer.REFUSED) is Verdict.REFUSED
    assert wants(sequencer) == ""
    assert sequencer.on_answer(second, Answer.OUT_OF_ORDER) is Verdict.RENEW
    assert sequencer.on_answer(third, Answer.OUT_OF_ORDER) is Verdict.RENEW
    assert sequencer.next_to_send() is None
    assert wants(sequencer) == "renewal"
    sequencer.renew(Identity(1, 1))
    assert [(s.batch, s.base_sequence) for s in sequencer.slots] == [("b", 0), ("c", 10)]
    assert sequencer.next_sequence == 20


@pytest.mark.promise("in-sequence-number-assigned")
def test_a_refused_only_batch_burns_its_number_too() -> None:
    """Going on with the next number wedges the partition for good (aiokafka #1017)."""
    sequencer = confirmed_sequencer()
    (slot,) = send(sequencer, "a")
    sequencer.on_answer(slot, Answer.REFUSED)
    assert not has_room(sequencer)
    assert sequencer.renewal_due
    sequencer.renew(Identity(1, 1))
    assert sequencer.admit("b", 1).base_sequence == 0


def test_batches_before_a_refused_one_keep_their_numbers() -> None:
    """They finish under the old identity before the renewal."""
    sequencer = confirmed_sequencer()
    first, second, third = send(sequencer, "a", "b", "c")
    sequencer.on_answer(first, Answer.RETRIABLE)
    assert sequencer.on_answer(second, Answer.REFUSED) is Verdict.REFUSED
    sequencer.on_answer(third, Answer.OUT_OF_ORDER)
    assert wants(sequencer) == ""
    assert sequencer.next_to_send() is first
    sequencer.sent(first)
    sequencer.on_answer(first, Answer.PERSISTED)
    assert wants(sequencer) == "renewal"


def test_a_batch_that_is_too_large_is_replaced_by_its_halves() -> None:
    """They and all behind them are numbered anew, in the old order."""
    sequencer = confirmed_sequencer()
    first, second = send(sequencer, "ab", "c")
    assert sequencer.on_answer(first, Answer.TOO_LARGE) is Verdict.SPLIT
    sequencer.replace(first, [("a", 5), ("b", 5)])
    sequencer.on_answer(second, Answer.OUT_OF_ORDER)
    sequencer.renew(Identity(1, 1))
    assert [(s.batch, s.base_sequence) for s in sequencer.slots] == [("a", 0), ("b", 5), ("c", 10)]


def test_halves_stand_where_their_batch_was() -> None:
    """With its number, its identity and its attempts, between those before and behind it."""
    sequencer = confirmed_sequencer()
    before, split, _ = send(sequencer, "before", "ab", "behind")
    sequencer.on_answer(split, Answer.TOO_LARGE)
    sequencer.replace(split, [("a", 5), ("b", 5)])
    assert [slot.batch for slot in sequencer.slots] == ["before", "a", "b", "behind"]
    for half in sequencer.slots[1:3]:
        assert (half.base_sequence, half.identity, half.attempts) == (10, ID, 1)
    assert sequencer.slots[0] is before


@pytest.mark.parametrize("answer", [Answer.OUT_OF_ORDER, Answer.FORGOTTEN, Answer.FENCED])
def test_a_head_that_the_broker_cannot_place_is_renewed(answer: Answer) -> None:
    """Surely not in the log, so it is renumbered without a question."""
    sequencer = confirmed_sequencer()
    (slot,) = send(sequencer, "a")
    assert sequencer.on_answer(slot, answer) is Verdict.RENEW
    assert sequencer.renewal_due
    assert sequencer.needs_new_id is (answer is Answer.FENCED)


def test_the_backlog_waits_for_room_in_order() -> None:
    """Batches are numbered at once and leave five at a time."""
    sequencer = confirmed_sequencer()
    slots = [sequencer.admit(name, 10) for name in "abcdefg"]
    assert [slot.base_sequence for slot in slots] == list(range(0, 70, 10))
    for slot in slots[:5]:
        assert sequencer.next_to_send() is slot
        sequencer.sent(slot)
    assert sequencer.next_to_send() is None
    sequencer.on_answer(slots[0], Answer.PERSISTED)
    assert sequencer.next_to_send() is slots[5]
    assert sequencer.pending == 6


def test_a_batch_that_is_held_holds_those_behind_it() -> None:
    sequencer = confirmed_sequencer()
    held = sequencer.admit("a", 10, held=True)
    sequencer.admit("b", 10)
    assert sequencer.next_to_send() is None
    held.held = False
    assert sequencer.next_to_send() is held


def test_a_batch_dropped_from_the_backlog_costs_the_numbers_behind_it() -> None:
    """What is in flight is settled first; then the rest is renumbered, with what came since."""
    sequencer = confirmed_sequencer()
    (sent,) = send(sequencer, "a")
    dropped, kept = sequencer.admit("b", 10), sequencer.admit("c", 10)
    assert sequencer.drop(dropped) is Verdict.REFUSED
    late = sequencer.admit("d", 10)
    assert sequencer.next_to_send() is None
    assert wants(sequencer) == ""
    sequencer.on_answer(sent, Answer.PERSISTED)
    assert wants(sequencer) == "renewal"
    sequencer.renew(Identity(1, 1))
    assert [slot.base_sequence for slot in (kept, late)] == [0, 10]
    assert sequencer.next_to_send() is kept


def test_an_order_broken_behind_the_head_is_not_held_against_a_new_head() -> None:
    """The answer was given while another batch was before it; it says nothing of this one."""
    sequencer = confirmed_sequencer()
    first, second = send(sequencer, "a", "b")
    sequencer.on_answer(first, Answer.PERSISTED)
    assert sequencer.on_answer(second, Answer.OUT_OF_ORDER) is Verdict.RETRY
    assert second.state is State.READY


def test_epochs_end_and_then_a_new_id_is_needed() -> None:
    assert Identity(3, MAX_EPOCH - 1).bumped() == Identity(3, MAX_EPOCH)
    assert Identity(3, MAX_EPOCH).bumped() is None


@pytest.mark.parametrize("window", [0, 6])
def test_a_window_that_the_broker_does_not_cover_is_refused(window: int) -> None:
    """Beyond five repeats get in."""
    with pytest.raises(ValueError, match="window"):
        Sequencer(ID, window=window)


def test_what_is_cleared_is_forgotten() -> None:
    """Nothing is sent, asked for or renewed any more."""
    sequencer, _ = in_a_next_life("former")
    sequencer.admit("new", 5)
    assert not sequencer.is_empty
    sequencer.clear()
    assert (sequencer.is_empty, wants(sequencer), sequencer.pending) == (True, "", 0)
    assert sequencer.unknown is False
    assert sequencer.next_to_send() is None


def test_a_batch_may_take_almost_all_numbers() -> None:
    """One less than there are, and no more: the broker's account of the last one says enough."""
    sequencer = confirmed_sequencer()
    slot = sequencer.admit("a", MAX_SEQUENCE)
    assert (slot.last_sequence, sequencer.next_sequence) == (MAX_SEQUENCE - 1, MAX_SEQUENCE)
    with pytest.raises(AssertionError):
        sequencer.admit("b", MAX_SEQUENCE + 1)


def test_attempts_are_counted() -> None:
    """From one: what is sent more than once is counted as retried."""
    sequencer = confirmed_sequencer()
    (slot,) = send(sequencer, "a")
    assert slot.attempts == 1
    sequencer.on_answer(slot, Answer.RETRIABLE)
    sequencer.sent(slot)
    assert slot.attempts == 2


def test_numbers_are_lost_from_the_first_refused_batch_on() -> None:
    """A refusal further behind changes nothing for those between the two."""
    sequencer = confirmed_sequencer()
    before, first, between, second = send(sequencer, "before", "first", "between", "second")
    sequencer.on_answer(before, Answer.RETRIABLE)
    assert sequencer.on_answer(first, Answer.REFUSED) is Verdict.REFUSED
    assert sequencer.on_answer(second, Answer.REFUSED) is Verdict.REFUSED
    assert sequencer.on_answer(between, Answer.OUT_OF_ORDER) is Verdict.RENEW
    sequencer.sent(before)
    assert sequencer.next_to_send() is None
    sequencer.on_answer(before, Answer.PERSISTED)
    assert (list(sequencer), wants(sequencer)) == ([between], "renewal")


def test_a_renumbered_batch_waits_for_the_journal() -> None:
    """It was sent before, and its new number has to be on disk before it is sent under that."""
    sequencer = confirmed_sequencer()
    slot, _ = send(sequencer, "a", "b")
    slot.held = True
    sequencer.on_answer(slot, Answer.RETRIABLE)
    assert sequencer.next_to_send() is None
    slot.held = False
    assert sequencer.next_to_send() is slot


def test_a_fenced_producer_needs_a_new_id_until_it_has_one() -> None:
    """Whatever else is answered before the renewal."""
    sequencer = confirmed_sequencer()
    fenced, split = send(sequencer, "a", "bc")
    assert sequencer.on_answer(fenced, Answer.FENCED) is Verdict.RENEW
    assert sequencer.on_answer(split, Answer.TOO_LARGE) is Verdict.SPLIT
    assert sequencer.needs_new_id is True
    sequencer.renew(Identity(2, 0))
    assert sequencer.needs_new_id is False


def test_a_renewed_identity_is_not_confirmed() -> None:
    """The broker has no state of it: its first batch goes alone."""
    sequencer = confirmed_sequencer()
    refused, first, second = send(sequencer, "refused", "first", "second")
    sequencer.on_answer(refused, Answer.REFUSED)
    for slot in (first, second):
        sequencer.on_answer(slot, Answer.OUT_OF_ORDER)
    sequencer.renew(NEXT)
    assert sequencer.identity == NEXT
    sequencer.sent(first)
    assert sequencer.next_to_send() is None
    sequencer.on_answer(first, Answer.PERSISTED)
    assert sequencer.next_to_send() is second
