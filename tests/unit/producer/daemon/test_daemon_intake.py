"""The daemon's intake: what is accepted when it stops, is cancelled, or has refused something."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from sequitur.errors import BacklogQuotaError, StoppingError
from sequitur.kafka.control import BacklogState
from sequitur.producer import Record
from sequitur.producer.daemon.intake import ProducerIntake, position_and_mark
from sequitur.producer.sources._dead_letter import DeadLetterFile
from tests.support.dead_letter_file import read_dead_letters

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from sequitur.producer import IdempotentProducer
    from sequitur.producer.journal.frames import SourcePosition

_RECORDS = [Record(b"1"), Record(b"2")]


class _Producer:
    """Accepts when there is room, as `IdempotentProducer.accept` does."""

    def __init__(self, dead_letters: DeadLetterFile) -> None:
        self.room = asyncio.Event()
        self.accepted: list[tuple[str, Sequence[Record], SourcePosition | None]] = []
        self.noted: list[SourcePosition] = []
        self.on_accepted: Callable[[], object] = lambda: None
        self.unsynced_at_a_position = False
        self.within_quota = asyncio.Event()
        self.within_quota.set()
        self.taken = asyncio.Event()
        self.taken.set()
        self._dead_letters = dead_letters

    async def accept(
        self, topic: str, records: Sequence[Record], position: SourcePosition | None = None
    ) -> str:
        if not self.within_quota.is_set():
            state = BacklogState(issued_ms=0, valid_for_ms=0, policy="producer_exception")
            raise BacklogQuotaError(topic, state, held=False)
        if not self.room.is_set():
            await self.room.wait()
        self.unsynced_at_a_position |= position is not None and self._dead_letters.owes_sync
        self.accepted.append((topic, records, position))
        self.on_accepted()
        return "ticket"

    async def accept_each(self, topic: str, records: Sequence[Record]) -> str:
        return await self.accept(topic, records)

    async def wait_for_quota(self, topic: str) -> None:
        assert topic == "t"
        await self.within_quota.wait()

    async def wait_for_topic(self, topic: str) -> None:
        assert topic == "t"
        await self.taken.wait()

    async def note_position(self, position: SourcePosition) -> None:
        self.unsynced_at_a_position |= self._dead_letters.owes_sync
        self.noted.append(position)


class _Rig:
    """An intake between a producer of ours and a dead-letter file."""

    def __init__(self, folder: Path) -> None:
        self.file = DeadLetterFile(folder / "dead.jsonl")
        self.producer = _Producer(self.file)
        self.stopping = asyncio.Event()
        self.intake = ProducerIntake(
            cast("IdempotentProducer", self.producer), "t", "file:a", self.file, self.stopping
        )

    def accept(self, position: bytes | None = None) -> asyncio.Task[Any]:
        return asyncio.ensure_future(self.intake.accept(_RECORDS, position))


@pytest.fixture
async def rig(tmp_path: Path) -> _Rig:
    rig = _Rig(tmp_path)
    rig.producer.room.set()
    return rig


async def test_events_go_with_their_position(rig: _Rig) -> None:
    """To the topic, under the source's name; with the mark of the dead-letter file."""
    mark = rig.file.mark
    assert await rig.accept(b"p") == "ticket"
    assert await rig.accept() == "ticket"
    rig.intake.refuse(b"x", "line 1", "no JSON")
    await rig.intake.note_position(b"q")
    (accepted, (*_, none)), (noted,) = rig.producer.accepted, rig.producer.noted
    position = accepted[2]
    assert position is not None
    assert (*accepted[:2], none) == ("t", _RECORDS, None)
    assert (position.source, noted.source) == ("file:a", "file:a")
    assert position_and_mark(position.value) == (b"p", mark)
    assert position_and_mark(noted.value) == (b"q", rig.file.mark)
    assert mark != rig.file.mark


def test_a_position_of_before_has_no_mark() -> None:
    assert position_and_mark(b'{"offset":3}') == (b'{"offset":3}', None)
    assert position_and_mark(None) == (None, None)


async def test_with_room_events_are_accepted_though_the_daemon_stops(rig: _Rig) -> None:
    """A source sends what it holds back."""
    rig.stopping.set()
    await rig.accept()
    assert len(rig.producer.accepted) == 1


async def test_without_room_a_stop_refuses_them(rig: _Rig) -> None:
    """And room that comes later changes nothing."""
    rig.producer.room.clear()
    waiting = rig.accept()
    await asyncio.sleep(0)
    rig.stopping.set()
    with pytest.raises(StoppingError):
        await waiting
    rig.producer.room.set()
    await asyncio.sleep(0)
    assert rig.producer.accepted == []


@pytest.mark.parametrize("each", [True, False])
async def test_a_source_waits_where_the_quota_raises(rig: _Rig, each: bool) -> None:
    """What it has read has nowhere else to go; it goes on when the topic is within its quota."""
    rig.producer.within_quota.clear()
    waiting = asyncio.ensure_future(rig.intake.accept_each(_RECORDS)) if each else rig.accept()
    await asyncio.sleep(0.01)
    assert not waiting.done()
    rig.producer.within_quota.set()
    await waiting
    assert rig.producer.accepted == [("t", _RECORDS, None)]


@pytest.mark.parametrize("each", [True, False])
async def test_a_source_waits_while_its_topic_takes_no_batches(rig: _Rig, each: bool) -> None:
    """It would only fill the journal with what cannot be sent."""
    rig.producer.taken.clear()
    waiting = asyncio.ensure_future(rig.intake.accept_each(_RECORDS)) if each else rig.accept()
    await asyncio.sleep(0.01)
    assert rig.producer.accepted == []
    rig.producer.taken.set()
    await waiting
    assert rig.producer.accepted == [("t", _RECORDS, None)]


async def test_a_stop_ends_the_wait_for_a_quota(rig: _Rig) -> None:
    """Nothing was accepted, then or later."""
    rig.producer.within_quota.clear()
    waiting = rig.accept(b"p")
    await asyncio.sleep(0.01)
    rig.stopping.set()
    with pytest.raises(StoppingError):
        await waiting
    rig.producer.within_quota.set()
    await asyncio.sleep(0)
    assert rig.producer.accepted == []


async def test_a_caller_that_is_cancelled_has_given_nothing_away(rig: _Rig) -> None:
    """As an HTTP request that waits for room too long."""
    rig.producer.room.clear()
    waiting = rig.accept()
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    rig.producer.room.set()
    await asyncio.sleep(0.01)
    assert rig.producer.accepted == []


async def test_a_caller_that_is_cancelled_too_late_hears_that_they_were_accepted(
    rig: _Rig,
) -> None:
    """Else it would send them again."""
    rig.producer.room.clear()
    waiting = rig.accept()
    await asyncio.sleep(0.01)
    rig.producer.on_accepted = waiting.cancel
    rig.producer.room.set()
    assert await waiting == "ticket"


async def test_what_was_refused_is_on_disk_before_a_position_behind_it(rig: _Rig) -> None:
    """Else a crash could forget it."""
    rig.intake.refuse(b"bad", "line 1", "no JSON")
    assert rig.file.owes_sync
    await rig.accept(b"p")
    rig.intake.refuse(b"worse", "line 2", "no JSON")
    await rig.intake.note_position(b"q")
    assert not rig.producer.unsynced_at_a_position
    rig.file.close()
    found = [(each.source, each.where, each.raw) for each in read_dead_letters(rig.file.path)]
    assert found == [("file:a", "line 1", b"bad"), ("file:a", "line 2", b"worse")]


async def test_a_copy_is_kept_while_there_is_much_room(tmp_path: Path) -> None:
    """Its sender has it still, so a file that is half full takes none, and that is no failure."""
    file = DeadLetterFile(tmp_path / "dead.jsonl", limit_bytes=400)
    producer = cast("IdempotentProducer", _Producer(file))
    intake = ProducerIntake(producer, "t", "http:a:1", file, asyncio.Event())
    assert intake.keep_copy(b"nul", "line 1", "no JSON")
    assert intake.keep_copy(b"nul", "line 2", "no JSON")
    assert not intake.keep_copy(b"nul", "line 3", "no JSON")
    assert [letter.where for letter in read_dead_letters(file.path)] == ["line 1", "line 2"]
    file.close()
