"""The rules of the sequencer, one at a time; the machine in tests/property mixes them."""

from __future__ import annotations

import copy

import pytest

from sequitur.producer.delivery.sequencer import Sequencer
from sequitur.producer.delivery.slots import (
    MAX_SEQUENCE,
    Slot,
    State,
    Verdict,
    following,
)
from sequitur.producer.kafka.error_codes import Answer
from sequitur.producer.kafka.identity import MAX_EPOCH, Identity

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


def _has_room(sequencer: Sequencer[str]) -> bool:
    """Whether a new batch would be sent at once, and overtake nothing."""
    probed = copy.deepcopy(sequencer)
    return probed.admit("probe", 1) is probed.next_to_send()


def test_at_most_five_batches_are_in_flight() -> None:
    """The broker remembers five; a sixth could not be told from a repeat."""
    sequencer = _sequencer()
    _sent(sequencer, "a", "b", "c", "d", "e")
    assert not _has_room(sequencer)


def test_the_first_batch_of_an_identity_goes_alone() -> None:
    """A broker without state takes any sequence: a second must wait until it has state."""
    sequencer: Sequencer[str] = Sequencer(_ID)
    (first,) = _sent(sequencer, "a")
    assert not _has_room(sequencer)
    sequencer.on_answer(first, Answer.PERSISTED)
    _sent(sequencer, "b")
    assert _has_room(sequencer)


def test_a_rested_partition_goes_alone_again() -> None:
    """After a long idle time the broker may have forgotten the producer."""
    sequencer = _sequencer()
    sequencer.on_silence()
    _sent(sequencer, "a")
    assert not _has_room(sequencer)


def test_after_a_long_silence_a_doubtful_batch_is_asked_for_before_it_is_sent_again() -> None:
    """The broker may have it and have forgotten us: it would take it once more."""
    sequencer = _sequencer()
    lost, behind = _sent(sequencer, "lost", "behind")
    sequencer.on_answer(lost, Answer.UNKNOWN)
    sequencer.on_silence()
    assert _wants(sequencer) == ""  # the other one's answer may still come
    sequencer.on_answer(behind, Answer.UNKNOWN)
    sequencer.on_silence()
    assert (sequencer.next_to_send(), _wants(sequencer)) == (None, "query")
    assert sequencer.on_described(None) == []
    sequencer.on_searched([lost])
    assert sequencer.next_to_send() is behind
    assert (behind.base_sequence, _wants(sequencer)) == (10, "")


def test_a_silence_with_nothing_in_doubt_asks_nothing() -> None:
    """A batch that was surely not taken is just sent again."""
    sequencer = _sequencer()
    (slot,) = _sent(sequencer, "a")
    sequencer.on_answer(slot, Answer.RETRIABLE)
    sequencer.on_silence()
    assert sequencer.next_to_send() is slot


def test_nothing_overtakes_a_failed_batch() -> None:
    """While a batch waits to be sent again, none is admitted; it goes first, as it was."""
    sequencer = _sequencer()
    first, second = _sent(sequencer, "a", "b")
    assert sequencer.on_answer(first, Answer.RETRIABLE) is Verdict.RETRY
    assert not _has_room(sequencer)
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
    assert slot.possibly_appended
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
    assert not _has_room(sequencer)
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


def test_halves_stand_where_their_batch_was() -> None:
    """With its number, its identity and its attempts, between those before and behind it."""
    sequencer = _sequencer()
    before, split, _ = _sent(sequencer, "before", "ab", "behind")
    sequencer.on_answer(split, Answer.TOO_LARGE)
    sequencer.replace(split, [("a", 5), ("b", 5)])
    assert [slot.batch for slot in sequencer.slots] == ["before", "a", "b", "behind"]
    for half in sequencer.slots[1:3]:
        assert (half.base_sequence, half.identity, half.attempts) == (10, _ID, 1)
    assert sequencer.slots[0] is before


@pytest.mark.parametrize("answer", [Answer.OUT_OF_ORDER, Answer.FORGOTTEN, Answer.FENCED])
def test_a_head_that_the_broker_cannot_place_is_renewed(answer: Answer) -> None:
    """Surely not in the log, so it is renumbered without a question."""
    sequencer = _sequencer()
    (slot,) = _sent(sequencer, "a")
    assert sequencer.on_answer(slot, answer) is Verdict.RENEW
    assert sequencer.renewal_due
    assert sequencer.needs_new_id is (answer is Answer.FENCED)


def _in_doubt(sequencer: Sequencer[str], *names: str) -> list[Slot[str]]:
    """Batches whose answers were lost, the first of which then met a broken order."""
    slots = _sent(sequencer, *names)
    for slot in slots:
        sequencer.on_answer(slot, Answer.UNKNOWN)
    sequencer.sent(slots[0])
    sequencer.on_answer(slots[0], Answer.OUT_OF_ORDER)
    assert _wants(sequencer) == "query"
    return slots


@pytest.mark.parametrize(("last_sequence", "found"), [(-1, 0), (9, 1)])
def test_a_doubtful_batch_that_comes_next_keeps_its_number(last_sequence: int, found: int) -> None:
    """An older request may still be on its way; under the same number one of both is a repeat."""
    sequencer = _sequencer()
    slots = _in_doubt(sequencer, "a", "b")
    assert sequencer.on_described(last_sequence & MAX_SEQUENCE) == slots[:found]
    assert _wants(sequencer) == ""
    assert sequencer.next_to_send() is slots[found]
    assert slots[found].base_sequence == 10 * found
    assert slots[found].possibly_appended


@pytest.mark.parametrize("last_sequence", [19, 25])
def test_doubtful_batches_are_settled_by_the_brokers_last_sequence(last_sequence: int) -> None:
    """What it covers is in the log; at which offset, nobody knows."""
    sequencer = _sequencer()
    slots = _in_doubt(sequencer, "a", "b")
    assert sequencer.on_described(last_sequence) == slots
    assert _wants(sequencer) == "renewal"
    assert sequencer.is_empty


def test_a_doubtful_batch_whose_number_was_passed_over_is_renumbered() -> None:
    """The broker waits for a number that nobody has: neither it nor an old request can get in."""
    sequencer = _sequencer()
    _in_doubt(sequencer, "a", "b")
    assert sequencer.on_described(MAX_SEQUENCE - 10) == []
    assert _wants(sequencer) == "renewal"


def test_a_broker_that_breaks_its_word_is_asked_once() -> None:
    """It calls a number the next and then refuses it: the number is given up."""
    sequencer = _sequencer()
    (slot,) = _in_doubt(sequencer, "a")
    sequencer.on_described(MAX_SEQUENCE)
    sequencer.sent(slot)
    assert sequencer.on_answer(slot, Answer.OUT_OF_ORDER) is Verdict.RENEW
    assert _wants(sequencer) == "query"
    assert sequencer.on_described(MAX_SEQUENCE) == []
    assert _wants(sequencer) == "renewal"


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


def test_a_doubtful_batch_missing_from_the_log_is_sent_under_its_number() -> None:
    """A broker that has forgotten us takes any number, and tells an older request by it."""
    sequencer = _sequencer()
    (slot,) = _sent(sequencer, "a")
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
    sequencer.renew(Identity(2, 0))
    assert sequencer.slots == [slot]


def test_what_the_log_holds_is_settled_by_reading_it() -> None:
    """The first batch is there and the broker has forgotten it: the second goes on."""
    sequencer = _sequencer()
    first, second = _in_doubt(sequencer, "a", "b")
    sequencer.on_searched([first])
    assert sequencer.next_to_send() is second


def test_a_batch_in_the_log_behind_one_that_is_not_costs_the_numbers() -> None:
    """The one that is missing must be renumbered."""
    sequencer = _sequencer()
    first, second = _in_doubt(sequencer, "a", "b")
    sequencer.on_searched([second])
    assert sequencer.slots == [first]
    assert _wants(sequencer) == ""
    assert sequencer.next_to_send() is first


def _recovered(*names: str) -> tuple[Sequencer[str], list[Slot[str]]]:
    sequencer: Sequencer[str] = Sequencer(_ID, next_sequence=10 * len(names))
    return sequencer, [sequencer.recover(n, 10, 10 * i, _ID) for i, n in enumerate(names)]


def test_nothing_of_a_former_life_is_sent_before_the_broker_was_asked() -> None:
    """It may have all of it, and have forgotten us: then it would take it once more."""
    sequencer, _ = _recovered("a", "b")
    assert sequencer.next_to_send() is None
    assert _wants(sequencer) == "query"


@pytest.mark.parametrize(("last_sequence", "found"), [(MAX_SEQUENCE, 0), (9, 1), (19, 2)])
def test_a_former_life_goes_on_where_the_broker_knows_it_ended(
    last_sequence: int, found: int
) -> None:
    """What it has is settled; the rest goes out byte for byte, and new batches behind it."""
    sequencer, slots = _recovered("a", "b")
    assert sequencer.on_described(last_sequence) == slots[:found]
    new = sequencer.admit("new", 5)
    assert sequencer.next_to_send() is [*slots, new][found]
    assert new.base_sequence == 20
    assert _wants(sequencer) == ""


@pytest.mark.parametrize("found", [0, 1, 2])
def test_a_former_life_that_was_forgotten_goes_on_as_the_log_says(found: int) -> None:
    """Under the same numbers, one batch at a time until the broker knows us again."""
    sequencer, slots = _recovered("a", "b")
    new = sequencer.admit("new", 5)
    assert sequencer.on_described(None) == []
    sequencer.on_searched(slots[:found])
    rest = [*slots, new][found:]
    sequencer.sent(rest[0])
    assert sequencer.next_to_send() is None
    sequencer.on_answer(rest[0], Answer.PERSISTED)
    assert sequencer.next_to_send() is (rest[1] if len(rest) > 1 else None)


def test_a_former_life_is_asked_for_again_after_a_long_silence() -> None:
    """What it had on its way may have arrived since, and been forgotten together with us."""
    sequencer, slots = _recovered("a")
    sequencer.on_searched(())
    sequencer.on_silence()
    assert (_wants(sequencer), sequencer.next_to_send()) == ("query", None)
    sequencer.on_searched(slots)
    assert sequencer.is_empty


def test_a_former_life_that_nobody_can_tell_of_is_sent_again() -> None:
    """The broker's memory is trusted then."""
    sequencer, slots = _recovered("a")
    sequencer.trust()
    assert sequencer.next_to_send() is slots[0]
    assert slots[0].possibly_appended


def test_the_backlog_waits_for_room_in_order() -> None:
    """Batches are numbered at once and leave five at a time."""
    sequencer = _sequencer()
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
    """It is not in the journal yet."""
    sequencer = _sequencer()
    held = sequencer.admit("a", 10, held=True)
    sequencer.admit("b", 10)
    assert sequencer.next_to_send() is None
    held.held = False
    assert sequencer.next_to_send() is held


def test_a_batch_dropped_from_the_backlog_costs_the_numbers_behind_it() -> None:
    """What is in flight is settled first; then the rest is renumbered, with what came since."""
    sequencer = _sequencer()
    (sent,) = _sent(sequencer, "a")
    dropped, kept = sequencer.admit("b", 10), sequencer.admit("c", 10)
    assert sequencer.drop(dropped) is Verdict.REFUSED
    late = sequencer.admit("d", 10)
    assert sequencer.next_to_send() is None
    assert _wants(sequencer) == ""
    sequencer.on_answer(sent, Answer.PERSISTED)
    assert _wants(sequencer) == "renewal"
    sequencer.renew(Identity(1, 1))
    assert [slot.base_sequence for slot in (kept, late)] == [0, 10]
    assert sequencer.next_to_send() is kept


@pytest.mark.parametrize("got_in", [False, True])
def test_a_doubtful_batch_is_halved_only_once_the_broker_was_asked(*, got_in: bool) -> None:
    """An earlier attempt may have got in before the broker's limit was lowered."""
    sequencer = _sequencer()
    (slot,) = _sent(sequencer, "a")
    sequencer.on_answer(slot, Answer.UNKNOWN)
    for _ in range(2):  # what the broker vouches for is tried once more
        sequencer.sent(slot)
        assert sequencer.on_answer(slot, Answer.TOO_LARGE) is Verdict.RENEW
        assert _wants(sequencer) == "query"
        persisted = sequencer.on_described(slot.last_sequence if got_in else -1)
        if got_in:
            assert persisted == [slot]
            return
    assert _wants(sequencer) == "renewal"
    sequencer.renew(Identity(1, 1))
    sequencer.sent(slot)
    assert sequencer.on_answer(slot, Answer.TOO_LARGE) is Verdict.SPLIT


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


_NEXT = Identity(1, 1)


def _in_a_next_life(*names: str) -> tuple[Sequencer[str], list[Slot[str]]]:
    sequencer: Sequencer[str] = Sequencer(_NEXT)
    return sequencer, [sequencer.recover(n, 10, 10 * i, _ID) for i, n in enumerate(names)]


def test_what_is_new_waits_for_a_former_life_and_begins_at_0() -> None:
    """A newer epoch that got in would fence off what is left of the older."""
    sequencer, (old,) = _in_a_next_life("old")
    new, later = sequencer.admit("new", 5), sequencer.admit("later", 5)
    assert sequencer.leading == _ID
    sequencer.on_described(MAX_SEQUENCE)
    sequencer.sent(old)
    assert sequencer.next_to_send() is None
    sequencer.on_answer(old, Answer.PERSISTED)
    assert (sequencer.leading, new.identity, new.base_sequence) == (_NEXT, _NEXT, 0)
    sequencer.sent(new)
    assert sequencer.next_to_send() is None  # nothing is confirmed under the new identity yet
    sequencer.on_answer(new, Answer.PERSISTED)
    assert sequencer.next_to_send() is later


def test_each_former_life_is_asked_for_by_itself() -> None:
    """What the broker holds under one identity says nothing of another."""
    sequencer, (oldest,) = _in_a_next_life("oldest")
    middle = sequencer.recover("middle", 10, 0, Identity(1, 7))
    assert sequencer.on_described(9) == [oldest]
    assert (_wants(sequencer), sequencer.leading) == ("query", Identity(1, 7))
    assert sequencer.on_described(9) == [middle]
    assert (sequencer.is_empty, _wants(sequencer)) == (True, "")


def test_a_former_life_whose_identity_is_no_longer_ours_goes_out_under_ours() -> None:
    """After the log was read: what it holds is done, and the rest gets new numbers."""
    sequencer, (found, left) = _in_a_next_life("found", "left")
    new = sequencer.admit("new", 5)
    sequencer.on_searched([found], numbers_hold=False)
    assert _wants(sequencer) == "renewal"
    sequencer.renew(Identity(1, 2))
    assert [(slot.batch, slot.base_sequence) for slot in sequencer] == [("left", 0), ("new", 10)]
    assert {left.identity, new.identity} == {Identity(1, 2)}


def test_nothing_is_sent_under_a_provisional_identity() -> None:
    """Batches get numbers under it for the journal's sake, and others once a broker has spoken."""
    sequencer: Sequencer[str] = Sequencer(Identity.provisional())
    old = sequencer.recover("old", 10, 30, _ID)
    new = sequencer.admit("new", 5)
    sequencer.begin(_NEXT)
    assert ([old.identity, old.base_sequence], new.identity) == ([_ID, 30], _NEXT)
    assert sequencer.on_described(39) == [old]
    assert sequencer.next_to_send() is new
    unknown: Sequencer[str] = Sequencer(Identity.provisional())
    first, second = unknown.admit("new", 5), unknown.admit("newer", 5)
    assert unknown.next_to_send() is None
    unknown.begin(_NEXT)
    assert [slot.base_sequence for slot in (first, second)] == [0, 5]
    newest = unknown.admit("newest", 5)
    assert (unknown.identity, newest.identity, newest.base_sequence) == (_NEXT, _NEXT, 10)


def test_batch_of_a_former_life_that_is_given_up_may_be_in_the_log() -> None:
    """So it is lost and not refused; one that was never sent is refused."""
    sequencer, (old,) = _in_a_next_life("old")
    new = sequencer.admit("new", 5)
    assert (sequencer.drop(new), sequencer.drop(old)) == (Verdict.REFUSED, Verdict.LOST)


def test_question_that_is_due_stays_due() -> None:
    """Whether or not a request is in flight, and whatever else is in doubt."""
    sequencer, _ = _recovered("a")
    sequencer.on_described(MAX_SEQUENCE)
    slot = sequencer.next_to_send()
    assert slot is not None
    sequencer.sent(slot)
    sequencer.unknown = True
    assert sequencer.require_search()
    sequencer.on_answer(slot, Answer.RETRIABLE)
    slot.possibly_appended = False
    sequencer.on_silence()
    assert sequencer.unknown


def test_before_the_broker_forgets_the_log_is_read() -> None:
    """Its memory is no help then; not while an answer may still come."""
    sequencer = _sequencer()
    (slot,) = _sent(sequencer, "a")
    assert not sequencer.require_search()
    assert _wants(sequencer) == ""
    sequencer.on_answer(slot, Answer.UNKNOWN)
    assert sequencer.require_search()
    assert (_wants(sequencer), sequencer.takes_numbers) == ("query", False)
    sequencer.on_searched([slot])
    assert (sequencer.is_empty, sequencer.takes_numbers) == (True, True)


def test_what_is_cleared_is_forgotten() -> None:
    """Nothing is sent, asked for or renewed any more."""
    sequencer, _ = _in_a_next_life("former")
    sequencer.admit("new", 5)
    assert not sequencer.is_empty
    sequencer.clear()
    assert (sequencer.is_empty, _wants(sequencer), sequencer.pending) == (True, "", 0)
    assert sequencer.next_to_send() is None


@pytest.mark.parametrize("where", ["in the window", "behind it"])
def test_a_gap_that_closes_shows_the_next_one(where: str) -> None:
    """The first batch got in after all, so the others go on; up to where another was given up."""
    sequencer = _sequencer()
    first, second, third, *others = _sent(sequencer, "a", "b", "c", "d", "e")
    waiting, last = sequencer.admit("f", 10), sequencer.admit("g", 10)
    for slot in (first, second):
        sequencer.on_answer(slot, Answer.UNKNOWN)
    for slot in (third, *others):
        sequencer.on_answer(slot, Answer.OUT_OF_ORDER)
    given_up = third if where == "in the window" else waiting
    assert sequencer.drop(given_up) is Verdict.REFUSED
    assert sequencer.drop(first) is Verdict.LOST
    assert _wants(sequencer) == "query"
    assert sequencer.on_described(9) == []
    left = [second, third, *others, waiting, last]
    left.remove(given_up)
    good = left[: 4 if where == "behind it" else 1]
    for slot in good:
        assert sequencer.next_to_send() is slot
        sequencer.sent(slot)
        assert sequencer.on_answer(slot, Answer.PERSISTED) is Verdict.PERSISTED
    assert (list(sequencer), _wants(sequencer)) == (left[len(good) :], "renewal")
