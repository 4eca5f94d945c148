"""The offsets of a group without members: sent behind each write, and again each day."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from sequitur.consumer.subscription.group_offsets import GroupOffsets

_DAY_S = 86_400
_UNKNOWN_MEMBER_ID = 25


class _Group:
    """What a group has, and how it answers."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.told: list[str] = []
        self.has: dict[int, int] = {}
        self.offsets = GroupOffsets(self.told.append, lambda: self.now_s)

    def set(self, **partitions: int) -> None:
        self.offsets.set(
            TopicPartition("t", int(number[1:]), offset) for number, offset in partitions.items()
        )

    def is_settled(self) -> bool:
        return self.offsets.is_settled

    def answers(self, error: int | None = None) -> int:
        """Answer what is sent now; return how many partitions that was."""
        sent = self.offsets.due()
        if error is None:
            self.has |= {one.partition: one.offset for one in sent}
        self.offsets.answered(None if error is None else KafkaError(error), sent)
        return len(sent)


@pytest.mark.promise("sub-consumer-group-subscription")
def test_only_the_newest_is_sent_and_again_each_day() -> None:
    """Brokers forget the offsets of a group without members after a week."""
    group = _Group()
    group.set(p0=1, p1=5)
    group.set(p0=2)
    assert group.answers() == 2
    assert group.has == {0: 2, 1: 5}
    assert group.offsets.is_settled
    assert group.answers() == 0
    group.now_s = _DAY_S - 1
    assert group.answers() == 0
    group.now_s = _DAY_S
    assert group.answers() == 2
    assert group.offsets.is_settled


def test_while_an_answer_is_outstanding_nothing_is_sent() -> None:
    """Else an older offset could come last."""
    group = _Group()
    group.set(p0=1)
    sent = group.offsets.due()
    group.set(p0=2)
    assert group.offsets.due() == []
    group.offsets.answered(None, sent)
    assert not group.offsets.is_settled
    assert group.answers() == 1
    assert group.has == {0: 2}


def test_what_is_sent_again_replaces_nothing_newer() -> None:
    """The coordinator was away, and acks went on."""
    group = _Group()
    group.set(p0=1, p1=1)
    sent = group.offsets.due()
    group.set(p0=2)
    group.offsets.answered(KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE), sent)
    group.now_s += 1
    assert group.answers() == 2
    assert group.has == {0: 2, 1: 1}


@pytest.mark.promise("sub-consumer-group-subscription")
def test_a_group_with_members_is_told_once_an_hour_and_tried_again() -> None:
    """It is somebody else's; acks are stored all the same."""
    group = _Group()
    group.set(p0=1, p1=1)
    assert group.answers(_UNKNOWN_MEMBER_ID) == 2
    assert group.answers() == 0  # not at once
    group.set(p0=2)
    group.now_s += 1
    assert group.answers(_UNKNOWN_MEMBER_ID) == 2
    assert len(group.told) == 1
    assert "has other members" in group.told[0]
    group.now_s += 1
    assert group.answers() == 2
    assert group.has == {0: 2, 1: 1}


@pytest.mark.parametrize("error", [_UNKNOWN_MEMBER_ID, KafkaError.GROUP_AUTHORIZATION_FAILED])
def test_whoever_closes_waits_for_no_group_that_refuses(error: int) -> None:
    """It would wait for 20 s; offsets that are newer than the refusal are tried once, though."""
    group = _Group()
    group.set(p0=1)
    assert group.answers(error) == 1
    assert group.is_settled()
    group.set(p0=2)
    assert not group.is_settled()
    group.now_s += 1
    sent = group.offsets.due()
    assert not group.is_settled()
    group.set(p1=1)
    group.offsets.answered(KafkaError(error), sent)
    assert not group.is_settled()
    group.now_s += 1
    assert group.answers() == 2
    assert group.is_settled()
    assert group.has == {0: 2, 1: 1}


def test_whoever_closes_waits_for_no_group_that_may_not_be_seen() -> None:
    """What was sent has no answer until librdkafka gives it up; errors of topics say nothing."""
    group = _Group()
    group.set(p0=1)
    sent = group.offsets.due()
    error = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)
    assert not group.offsets.hides(Message(topic="t", partition=0, error=error))
    assert not group.offsets.hides(Message(error=KafkaError(KafkaError._TRANSPORT)))
    assert not group.is_settled()
    assert group.offsets.hides(Message(error=error))
    assert group.is_settled()
    assert len(group.told) == 1
    group.offsets.answered(KafkaError(KafkaError._WAIT_COORD), sent)
    group.now_s += 1
    assert group.is_settled()
    assert group.answers() == 1
    group.set(p0=2)
    assert not group.is_settled()


@pytest.mark.parametrize(
    "error", [KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._WAIT_COORD, 16]
)
def test_brokers_that_are_away_are_not_worth_a_line(error: int) -> None:
    group = _Group()
    group.set(p0=1)
    assert group.answers(error) == 1
    assert group.told == []
    assert not group.offsets.is_settled
    group.now_s += 1
    assert group.answers() == 1


def test_one_that_was_taken_over_from_sends_nothing_more() -> None:
    """Its offsets would stand for those of its successor."""
    group = _Group()
    group.set(p0=1)
    sent = group.offsets.due()
    group.set(p1=1)
    group.offsets.forget()
    group.offsets.answered(KafkaError(_UNKNOWN_MEMBER_ID), sent)
    group.now_s += _DAY_S
    assert group.answers() == 0
    assert group.offsets.is_settled
