"""Batches for the leaders of partitions: which go in one request, and in which order."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from sequitur.errors import OutcomeUnknownError, RetriableError
from sequitur.kafka import leaders
from sequitur.kafka.leaders import Leaders
from sequitur.kafka.partition import OutputPartition
from sequitur.kafka.producer_ids import PartitionAnswer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

_OUT = [OutputPartition("out", number) for number in range(4)]
_LATE = OutputPartition("late", 0)


class _Wire:
    """Two brokers; partition 3 has no leader."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, list[tuple[str, list[tuple[int, bytes]]]]]] = []
        self.is_up = True
        self.is_refused = False
        self.answer: Exception | None = None
        self.left_out: set[tuple[str, int]] = set()

    def leader(self, _topic: str, partition: int) -> int | None:
        return None if partition == 3 else partition // 2

    def is_connected(self, _node: int) -> bool:
        return self.is_up

    async def connect(self, _node: int) -> bool:
        return self.is_up

    def produce(
        self, node: int, topics: list[tuple[str, list[tuple[int, bytes]]]]
    ) -> Awaitable[dict[tuple[str, int], PartitionAnswer]]:
        if self.is_refused:
            raise RetriableError("the connection broke")
        self.requests.append((node, topics))
        return self._answer(topics)

    async def _answer(
        self, topics: list[tuple[str, list[tuple[int, bytes]]]]
    ) -> dict[tuple[str, int], PartitionAnswer]:
        await asyncio.sleep(0)
        if self.answer is not None:
            raise self.answer
        return {
            (topic, number): PartitionAnswer(0, len(batch))
            for topic, batches in topics
            for number, batch in batches
            if (topic, number) not in self.left_out
        }


def _leaders(wire: _Wire) -> Leaders:
    return Leaders(wire)  # type: ignore[arg-type]  # stands for it


async def test_batches_of_one_turn_go_in_one_request() -> None:
    """To each leader, whatever topic they are for; each gets its own answer."""
    wire = _Wire()
    all_of = _leaders(wire)
    answers = [
        all_of.produce(where, batch)
        for where, batch in [(_OUT[0], b"a"), (_OUT[2], b"bb"), (_LATE, b"ccc"), (_OUT[1], b"dddd")]
    ]
    assert [(await answer).base_offset for answer in answers] == [1, 2, 3, 4]
    assert wire.requests == [
        (0, [("out", [(0, b"a"), (1, b"dddd")]), ("late", [(0, b"ccc")])]),
        (1, [("out", [(2, b"bb")])]),
    ]


async def test_a_request_has_one_batch_of_a_partition() -> None:
    """The second goes in the next request, and behind the first."""
    wire = _Wire()
    all_of = _leaders(wire)
    answers = [
        all_of.produce(where, batch)
        for where, batch in [(_OUT[0], b"1"), (_OUT[0], b"2"), (_OUT[1], b"3"), (_OUT[0], b"4")]
    ]
    await asyncio.gather(*answers)
    assert wire.requests == [
        (0, [("out", [(0, b"1"), (1, b"3")])]),
        (0, [("out", [(0, b"2")])]),
        (0, [("out", [(0, b"4")])]),
    ]


async def test_a_request_is_not_large_if_need_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch that is larger than the limit goes alone; of a partition the order stays."""
    monkeypatch.setattr(leaders, "_REQUEST_BYTES", 5)
    wire = _Wire()
    all_of = _leaders(wire)
    answers = [
        all_of.produce(where, batch)
        for where, batch in [(_OUT[0], b"1234567"), (_OUT[1], b"12"), (_LATE, b"123")]
    ]
    answers += [all_of.produce(_OUT[1], b"4")]
    await asyncio.gather(*answers)
    assert wire.requests == [
        (0, [("out", [(0, b"1234567")])]),
        (0, [("out", [(1, b"12")]), ("late", [(0, b"123")])]),
        (0, [("out", [(1, b"4")])]),
    ]


async def test_a_partition_does_not_overtake_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that has to wait for the next request holds up later ones of its partition."""
    monkeypatch.setattr(leaders, "_REQUEST_BYTES", 5)
    wire = _Wire()
    all_of = _leaders(wire)
    answers = [
        all_of.produce(where, batch)
        for where, batch in [(_OUT[0], b"123"), (_OUT[1], b"456789"), (_OUT[1], b"x")]
    ]
    await asyncio.gather(*answers)
    sent = [batches for _node, topics in wire.requests for _topic, batches in topics]
    assert [batch for one in sent for number, batch in one if number == 1] == [b"456789", b"x"]


async def test_a_partition_without_a_leader_takes_nothing() -> None:
    with pytest.raises(RetriableError, match="no leader"):
        _leaders(_Wire()).produce(_OUT[3], b"a")


async def test_what_is_not_written_is_told_to_all_of_the_request() -> None:
    """A connection may break between two turns."""
    wire = _Wire()
    all_of = _leaders(wire)
    answers = [all_of.produce(where, b"a") for where in _OUT[:2]]
    wire.is_refused = True
    for answer in answers:
        with pytest.raises(RetriableError, match="broke"):
            await answer


async def test_an_answer_that_does_not_come_is_told_to_all_of_the_request() -> None:
    wire = _Wire()
    wire.answer = OutcomeUnknownError("no answer")
    all_of = _leaders(wire)
    answers = [all_of.produce(where, b"a") for where in _OUT[:2]]
    for answer in answers:
        with pytest.raises(OutcomeUnknownError):
            await answer


async def test_a_partition_that_the_answer_leaves_out_is_told_so() -> None:
    wire = _Wire()
    wire.left_out = {("out", 1)}
    all_of = _leaders(wire)
    answers = [all_of.produce(where, b"a") for where in _OUT[:2]]
    assert (await answers[0]).code == 0
    with pytest.raises(RetriableError, match="left it out"):
        await answers[1]


async def test_a_batch_that_was_given_up_disturbs_nobody() -> None:
    wire = _Wire()
    all_of = _leaders(wire)
    answers = [all_of.produce(where, b"a") for where in _OUT[:2]]
    answers[0].cancel()
    assert (await answers[1]).code == 0


async def test_an_answer_counts_for_questions_that_follow_at_once() -> None:
    """For the topics that it was about, and for those alone who say so."""
    asked: list[list[str]] = []
    is_told = True

    class Told(_Wire):
        def topic_id(self, _topic: str) -> bytes:
            return b"topic"

        async def refresh(self, topics: Iterable[str]) -> bool:
            asked.append([*topics])
            return is_told

    some = _leaders(Told())
    assert not some.were_told(["in"], 60)
    assert await some.refresh(["in"])
    assert some.were_told(["in"], 60)
    assert not some.were_told(["in"], 0)
    assert not some.were_told(["in", "out"], 60)
    assert not some.were_told([], 60)
    assert await some.refresh(["in", "out"])
    assert some.were_told(["in", "out"], 60)
    is_told = False
    assert not await some.refresh(["out"])
    assert not some.were_told(["out"], 60)
    assert some.were_told(["in"], 60)
    assert asked == [["in"], ["in", "out"], ["out"]]
