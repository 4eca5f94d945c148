"""What the sequencer does about batches that a journal held at the start."""

from __future__ import annotations

import pytest

from sequitur.kafka.error_codes import Answer
from sequitur.kafka.identity import Identity
from sequitur.kafka.record_format import MAX_SEQUENCE
from sequitur.producer.delivery.sequencer import Doubt, Sequencer, Verdict
from tests.support.sequencers import ID, NEXT, in_a_next_life, recovered, wants


def test_nothing_of_a_former_life_is_sent_before_the_broker_was_asked() -> None:
    """It may have all of it, and have forgotten us: then it would take it once more."""
    sequencer, _ = recovered("a", "b")
    assert sequencer.next_to_send() is None
    assert wants(sequencer) == "query"


@pytest.mark.parametrize(("last_sequence", "found"), [(MAX_SEQUENCE, 0), (9, 1), (19, 2)])
def test_a_former_life_goes_on_where_the_broker_knows_it_ended(
    last_sequence: int, found: int
) -> None:
    """What it has is settled; the rest goes out byte for byte, and new batches behind it."""
    sequencer, slots = recovered("a", "b")
    assert sequencer.on_described(last_sequence) == slots[:found]
    assert sequencer.unknown is False
    new = sequencer.admit("new", 5)
    assert sequencer.next_to_send() is [*slots, new][found]
    assert new.base_sequence == 20
    assert wants(sequencer) == ""


@pytest.mark.parametrize("found", [0, 1, 2])
def test_a_former_life_that_was_forgotten_goes_on_as_the_log_says(found: int) -> None:
    """Under the same numbers, one batch at a time until the broker knows us again."""
    sequencer, slots = recovered("a", "b")
    new = sequencer.admit("new", 5)
    assert sequencer.on_described(None) == []
    sequencer.on_searched(slots[:found])
    rest = [*slots, new][found:]
    sequencer.sent(rest[0])
    assert sequencer.next_to_send() is None
    sequencer.on_answer(rest[0], Answer.PERSISTED)
    assert sequencer.next_to_send() is (rest[1] if len(rest) > 1 else None)


@pytest.mark.promise("in-request-producer-killed")
def test_a_former_life_is_asked_for_again_after_a_long_silence() -> None:
    """What it had on its way may have arrived since, and been forgotten together with us."""
    sequencer, slots = recovered("a")
    sequencer.on_searched(())
    sequencer.on_silence()
    assert (wants(sequencer), sequencer.next_to_send()) == ("query", None)
    sequencer.on_searched(slots)
    assert sequencer.is_empty


def test_a_former_life_that_nobody_can_tell_of_is_sent_again() -> None:
    """The broker's memory is trusted then."""
    sequencer, slots = recovered("a")
    doubts = [slots[0].doubt]
    sequencer.trust()
    assert sequencer.unknown is False
    assert [*doubts, slots[0].doubt] == [Doubt.POSSIBLE, Doubt.ASKED]
    assert sequencer.next_to_send() is slots[0]
    assert slots[0].possibly_appended


def test_what_is_new_waits_for_a_former_life_and_begins_at_0() -> None:
    """A newer epoch that got in would fence off what is left of the older."""
    sequencer, (old,) = in_a_next_life("old")
    new, later = sequencer.admit("new", 5), sequencer.admit("later", 5)
    assert sequencer.leading == ID
    sequencer.on_described(MAX_SEQUENCE)
    sequencer.sent(old)
    assert sequencer.next_to_send() is None
    sequencer.on_answer(old, Answer.PERSISTED)
    assert (sequencer.leading, new.identity, new.base_sequence) == (NEXT, NEXT, 0)
    sequencer.sent(new)
    assert sequencer.next_to_send() is None  # nothing is confirmed under the new identity yet
    sequencer.on_answer(new, Answer.PERSISTED)
    assert sequencer.next_to_send() is later


def test_each_former_life_is_asked_for_by_itself() -> None:
    """What the broker holds under one identity says nothing of another."""
    sequencer, (oldest,) = in_a_next_life("oldest")
    middle = sequencer.recover("middle", 10, 0, Identity(1, 7))
    assert sequencer.on_described(9) == [oldest]
    assert (wants(sequencer), sequencer.leading) == ("query", Identity(1, 7))
    assert sequencer.on_described(9) == [middle]
    assert (sequencer.is_empty, wants(sequencer)) == (True, "")


def test_a_former_life_whose_identity_is_no_longer_ours_goes_out_under_ours() -> None:
    """After the log was read: what it holds is done, and the rest gets new numbers."""
    sequencer, (found, left) = in_a_next_life("found", "left")
    new = sequencer.admit("new", 5)
    sequencer.on_searched([found], numbers_hold=False)
    assert wants(sequencer) == "renewal"
    sequencer.renew(Identity(1, 2))
    assert [(slot.batch, slot.base_sequence) for slot in sequencer] == [("left", 0), ("new", 10)]
    assert {left.identity, new.identity} == {Identity(1, 2)}


def test_nothing_is_sent_under_a_provisional_identity() -> None:
    """Batches get numbers under it for the journal's sake, and others once a broker has spoken."""
    sequencer: Sequencer[str] = Sequencer(Identity.provisional())
    old = sequencer.recover("old", 10, 30, ID)
    new = sequencer.admit("new", 5)
    sequencer.begin(NEXT)
    assert ([old.identity, old.base_sequence], new.identity) == ([ID, 30], NEXT)
    assert sequencer.on_described(39) == [old]
    assert sequencer.next_to_send() is new
    unknown: Sequencer[str] = Sequencer(Identity.provisional())
    first, second = unknown.admit("new", 5), unknown.admit("newer", 5)
    assert unknown.next_to_send() is None
    unknown.begin(NEXT)
    assert [slot.base_sequence for slot in (first, second)] == [0, 5]
    newest = unknown.admit("newest", 5)
    assert (unknown.identity, newest.identity, newest.base_sequence) == (NEXT, NEXT, 10)


def test_batch_of_a_former_life_that_is_given_up_may_be_in_the_log() -> None:
    """So it is lost and not refused; one that was never sent is refused."""
    sequencer, (old,) = in_a_next_life("old")
    new = sequencer.admit("new", 5)
    assert (sequencer.drop(new), sequencer.drop(old)) == (Verdict.REFUSED, Verdict.LOST)


def test_a_former_life_with_a_hole_in_the_log_is_renumbered() -> None:
    """A later batch of it is there and an earlier one is not: its number is not accepted again."""
    sequencer, (missing, found) = recovered("missing", "found")
    sequencer.on_searched([found])
    assert list(sequencer) == [missing]
    assert (sequencer.next_to_send(), wants(sequencer)) == (None, "renewal")
    sequencer.renew(NEXT)
    assert (sequencer.next_to_send(), missing.identity, missing.base_sequence) == (missing, NEXT, 0)


def test_a_search_for_one_former_life_decides_those_behind_it() -> None:
    """It looks for all of them: what is not in the log is sent without another question."""
    sequencer, (oldest,) = in_a_next_life("oldest")
    middle = sequencer.recover("middle", 10, 0, Identity(1, 7))
    sequencer.on_searched(())
    assert (oldest.possibly_appended, middle.possibly_appended) == (True, False)
    sequencer.sent(oldest)
    sequencer.on_answer(oldest, Answer.PERSISTED)
    assert (wants(sequencer), sequencer.next_to_send()) == ("", middle)


def test_a_search_under_numbers_that_are_another_s_leaves_no_doubt() -> None:
    """Else the log would be searched for the batch again and again: it never goes out."""
    sequencer: Sequencer[str] = Sequencer(Identity(7, 0), confirmed=True)
    slot = sequencer.admit("a", 1)
    sequencer.sent(slot)
    sequencer.on_answer(slot, Answer.UNKNOWN)
    assert sequencer.require_query()
    sequencer.on_searched([], numbers_hold=False)
    assert not slot.possibly_appended
    assert sequencer.next_to_send() is slot
