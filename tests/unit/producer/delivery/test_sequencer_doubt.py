"""What the sequencer does about batches that may be in the log."""

from __future__ import annotations

import pytest

from sequitur.kafka.error_codes import Answer
from sequitur.kafka.identity import Identity
from sequitur.kafka.record_format import MAX_SEQUENCE
from sequitur.producer.delivery.sequencer import Doubt, Verdict
from tests.support.sequencers import ID, confirmed_sequencer, in_doubt, recovered, send, wants


def test_after_a_long_silence_a_doubtful_batch_is_asked_for_before_it_is_sent_again() -> None:
    """The broker may have it and have forgotten us: it would take it once more."""
    sequencer = confirmed_sequencer()
    lost, behind = send(sequencer, "lost", "behind")
    sequencer.on_answer(lost, Answer.UNKNOWN)
    sequencer.on_silence()
    assert wants(sequencer) == ""  # the other one's answer may still come
    sequencer.on_answer(behind, Answer.UNKNOWN)
    sequencer.on_silence()
    assert (sequencer.next_to_send(), wants(sequencer)) == (None, "query")
    assert sequencer.on_described(None) == []
    sequencer.on_searched([lost])
    assert sequencer.next_to_send() is behind
    assert (behind.base_sequence, wants(sequencer)) == (10, "")


def test_a_silence_with_nothing_in_doubt_asks_nothing() -> None:
    """A batch that was surely not taken is just sent again."""
    sequencer = confirmed_sequencer()
    (slot,) = send(sequencer, "a")
    sequencer.on_answer(slot, Answer.RETRIABLE)
    sequencer.on_silence()
    assert sequencer.next_to_send() is slot


@pytest.mark.parametrize(("last_sequence", "found"), [(-1, 0), (9, 1)])
def test_a_doubtful_batch_that_comes_next_keeps_its_number(last_sequence: int, found: int) -> None:
    """An older request may still be on its way; under the same number one of both is a repeat."""
    sequencer = confirmed_sequencer()
    slots = in_doubt(sequencer, "a", "b")
    assert sequencer.on_described(last_sequence & MAX_SEQUENCE) == slots[:found]
    assert wants(sequencer) == ""
    assert sequencer.next_to_send() is slots[found]
    assert slots[found].base_sequence == 10 * found
    assert slots[found].possibly_appended


@pytest.mark.parametrize("last_sequence", [19, 25])
def test_doubtful_batches_are_settled_by_the_brokers_last_sequence(last_sequence: int) -> None:
    """What it covers is in the log; at which offset, nobody knows."""
    sequencer = confirmed_sequencer()
    slots = in_doubt(sequencer, "a", "b")
    assert sequencer.on_described(last_sequence) == slots
    assert wants(sequencer) == "renewal"
    assert sequencer.is_empty


def test_a_doubtful_batch_whose_number_was_passed_over_is_renumbered() -> None:
    """The broker waits for a number that nobody has: neither it nor an old request can get in."""
    sequencer = confirmed_sequencer()
    slots = in_doubt(sequencer, "a", "b")
    assert sequencer.on_described(MAX_SEQUENCE - 10) == []
    assert wants(sequencer) == "renewal"
    assert [slot.possibly_appended for slot in slots] == [False, False]


def test_a_broker_that_breaks_its_word_is_asked_once() -> None:
    """It calls a number the next and then refuses it: the number is given up."""
    sequencer = confirmed_sequencer()
    (slot,) = in_doubt(sequencer, "a")
    sequencer.on_described(MAX_SEQUENCE)
    sequencer.sent(slot)
    assert sequencer.on_answer(slot, Answer.OUT_OF_ORDER) is Verdict.RENEW
    assert wants(sequencer) == "query"
    assert sequencer.on_described(MAX_SEQUENCE) == []
    assert (wants(sequencer), slot.possibly_appended) == ("renewal", False)


def test_a_doubtful_batch_that_nobody_knows_of_is_told_as_lost() -> None:
    """Renumbering it could double it: its fate stays open, and is said to be."""
    sequencer = confirmed_sequencer()
    (slot,) = send(sequencer, "a")
    sequencer.on_answer(slot, Answer.UNKNOWN)
    sequencer.sent(slot)
    sequencer.on_answer(slot, Answer.FORGOTTEN)
    assert sequencer.on_described(None) == []
    assert sequencer.query_due
    assert sequencer.drop(slot) is Verdict.LOST
    assert sequencer.renewal_due


def test_a_doubtful_batch_missing_from_the_log_is_sent_under_its_number() -> None:
    """A broker that has forgotten us takes any number, and tells an older request by it."""
    sequencer = confirmed_sequencer()
    (slot,) = send(sequencer, "a")
    sequencer.on_answer(slot, Answer.UNKNOWN)
    sequencer.sent(slot)
    sequencer.on_answer(slot, Answer.FORGOTTEN)
    sequencer.on_searched(())
    assert sequencer.next_to_send() is slot
    sequencer.sent(slot)
    sequencer.on_answer(slot, Answer.FORGOTTEN)
    assert sequencer.query_due
    sequencer.on_searched(())
    assert sequencer.renewal_due
    assert slot.possibly_appended is False
    sequencer.renew(Identity(2, 0))
    assert sequencer.slots == [slot]


def test_what_the_log_holds_is_settled_by_reading_it() -> None:
    """The first batch is there and the broker has forgotten it: the second goes on."""
    sequencer = confirmed_sequencer()
    first, second = in_doubt(sequencer, "a", "b")
    sequencer.on_searched([first])
    assert sequencer.next_to_send() is second


def test_a_batch_in_the_log_behind_one_that_is_not_costs_the_numbers() -> None:
    sequencer = confirmed_sequencer()
    first, second = in_doubt(sequencer, "a", "b")
    sequencer.on_searched([second])
    assert sequencer.slots == [first]
    assert wants(sequencer) == ""
    assert sequencer.next_to_send() is first


@pytest.mark.promise("in-record-batch-refused")
@pytest.mark.parametrize("got_in", [False, True])
def test_a_doubtful_batch_is_halved_only_once_the_broker_was_asked(*, got_in: bool) -> None:
    """An earlier attempt may have got in before the broker's limit was lowered."""
    sequencer = confirmed_sequencer()
    (slot,) = send(sequencer, "a")
    sequencer.on_answer(slot, Answer.UNKNOWN)
    for _ in range(2):  # what the broker vouches for is tried once more
        sequencer.sent(slot)
        assert sequencer.on_answer(slot, Answer.TOO_LARGE) is Verdict.RENEW
        assert wants(sequencer) == "query"
        persisted = sequencer.on_described(slot.last_sequence if got_in else -1)
        if got_in:
            assert persisted == [slot]
            return
    assert wants(sequencer) == "renewal"
    sequencer.renew(Identity(1, 1))
    sequencer.sent(slot)
    assert sequencer.on_answer(slot, Answer.TOO_LARGE) is Verdict.SPLIT


def test_question_that_is_due_stays_due() -> None:
    """Whether or not a request is in flight, and whatever else is in doubt."""
    sequencer, _ = recovered("a")
    sequencer.on_described(MAX_SEQUENCE)
    slot = sequencer.next_to_send()
    assert slot is not None
    sequencer.sent(slot)
    sequencer.unknown = True
    assert sequencer.require_query()
    sequencer.on_answer(slot, Answer.RETRIABLE)
    slot.doubt = Doubt.NONE
    sequencer.on_silence()
    assert sequencer.unknown


def test_before_the_broker_forgets_the_log_is_read() -> None:
    """Its memory is no help then; not while an answer may still come."""
    sequencer = confirmed_sequencer()
    (slot,) = send(sequencer, "a")
    assert not sequencer.require_query()
    assert wants(sequencer) == ""
    sequencer.on_answer(slot, Answer.UNKNOWN)
    assert sequencer.require_query()
    assert (wants(sequencer), sequencer.takes_numbers) == ("query", False)
    sequencer.on_searched([slot])
    assert (sequencer.is_empty, sequencer.takes_numbers) == (True, True)


@pytest.mark.parametrize("where", ["in the window", "behind it"])
def test_a_gap_that_closes_shows_the_next_one(where: str) -> None:
    """The first batch got in after all, so the others go on; up to where another was given up."""
    sequencer = confirmed_sequencer()
    first, second, third, *others = send(sequencer, "a", "b", "c", "d", "e")
    waiting, last = sequencer.admit("f", 10), sequencer.admit("g", 10)
    for slot in (first, second):
        sequencer.on_answer(slot, Answer.UNKNOWN)
    for slot in (third, *others):
        sequencer.on_answer(slot, Answer.OUT_OF_ORDER)
    given_up = third if where == "in the window" else waiting
    assert sequencer.drop(given_up) is Verdict.REFUSED
    assert sequencer.drop(first) is Verdict.LOST
    assert wants(sequencer) == "query"
    assert sequencer.on_described(9) == []
    left = [second, third, *others, waiting, last]
    left.remove(given_up)
    good = left[: 4 if where == "behind it" else 1]
    for slot in good:
        assert sequencer.next_to_send() is slot
        sequencer.sent(slot)
        assert sequencer.on_answer(slot, Answer.PERSISTED) is Verdict.PERSISTED
    assert (list(sequencer), wants(sequencer)) == (left[len(good) :], "renewal")


def test_doubt_outlives_a_plain_failure() -> None:
    """That a later attempt was surely not appended says nothing of an earlier one."""
    sequencer = confirmed_sequencer()
    (slot,) = send(sequencer, "a")
    for answer in (Answer.UNKNOWN, Answer.RETRIABLE):
        sequencer.on_answer(slot, answer)
        assert slot.possibly_appended is True
        sequencer.sent(slot)
    assert sequencer.on_answer(slot, Answer.FENCED) is Verdict.RENEW
    assert wants(sequencer) == "query"


@pytest.mark.parametrize("answer", [Answer.REFUSED, Answer.TOO_LARGE])
def test_what_is_refused_says_nothing_of_what_was_sent_before_it(answer: Answer) -> None:
    """Only batches behind it cannot be in the log; the one before it still may."""
    sequencer = confirmed_sequencer()
    before, refused = send(sequencer, "before", "refused")
    sequencer.on_answer(before, Answer.UNKNOWN)
    sequencer.on_answer(refused, answer)
    assert before.doubt is Doubt.POSSIBLE


def test_what_was_sent_behind_a_refused_batch_is_not_in_doubt() -> None:
    """The broker accepts none out of order, so a lost answer to it was no good one."""
    sequencer = confirmed_sequencer()
    refused, behind = send(sequencer, "refused", "behind")
    sequencer.on_answer(refused, Answer.REFUSED)
    assert behind.doubt is Doubt.ABSENT
    assert sequencer.on_answer(behind, Answer.UNKNOWN) is Verdict.RENEW
    assert (behind.possibly_appended, wants(sequencer)) == (False, "renewal")


def test_a_search_holds_until_the_batch_is_sent_again() -> None:
    """Then it may get in unseen, and has to be searched for anew."""
    sequencer = confirmed_sequencer()
    (slot,) = send(sequencer, "a")
    sequencer.on_answer(slot, Answer.UNKNOWN)
    assert sequencer.require_query()
    sequencer.on_searched(())
    assert (slot.doubt, sequencer.unknown) == (Doubt.SEARCHED, False)
    sequencer.sent(slot)
    assert slot.doubt is Doubt.POSSIBLE


def test_a_search_puts_nothing_in_doubt() -> None:
    """A batch that surely did not arrive is not looked for, and may still expire as refused."""
    sequencer = confirmed_sequencer()
    (slot,) = send(sequencer, "a")
    sequencer.on_answer(slot, Answer.RETRIABLE)
    assert sequencer.require_query()
    sequencer.on_searched(())
    assert slot.possibly_appended is False
    assert sequencer.drop(slot) is Verdict.REFUSED


def test_numbers_of_this_life_hold_whatever_became_of_former_ones() -> None:
    """Another producer has the identities of former lives, and nothing is left of those."""
    sequencer = confirmed_sequencer()
    (slot,) = send(sequencer, "a")
    sequencer.on_answer(slot, Answer.UNKNOWN)
    assert sequencer.require_query()
    sequencer.on_searched((), numbers_hold=False)
    assert (wants(sequencer), sequencer.next_to_send()) == ("", slot)
    assert (slot.base_sequence, slot.identity) == (0, ID)
