"""A recording is replayed at its own pace or another, and goes on where it was stopped."""

from __future__ import annotations

import asyncio
import os
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from sequitur.base.json_field import JsonField
from sequitur.errors import PositionError, SourceError
from sequitur.producer.sources._lines import EventParser
from sequitur.producer.sources._replay_schedule import Disorder
from sequitur.producer.sources.replay import ReplaySource, time_of
from tests.support.fake_intake import CrashedError, FakeIntake, FakeJournal

if TYPE_CHECKING:
    from pathlib import Path

_DISORDER = Disorder(up_to_ms=500, late_share=0.1, late_by_ms=5_000, seed=3)


class _Clock:
    """Stands still unless somebody waits."""

    def __init__(self) -> None:
        self.s = 100.0

    def now(self) -> float:
        return self.s

    async def pause(self, stopping: asyncio.Event, seconds: float) -> None:
        del stopping
        await asyncio.sleep(0)
        self.s += seconds


def _lines(count: int) -> list[bytes]:
    return [msgspec.json.encode({"n": n, "at": 1_700_000_000_000 + 100 * n}) for n in range(count)]


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "day.jsonl"
    path.write_bytes(b"\n".join(_lines(40)) + b"\n")
    return path


async def _replay(
    path: Path,
    journal: FakeJournal,
    *,
    crash_at: int | None = None,
    clock: _Clock | None = None,
    **options: Any,
) -> FakeIntake:
    intake = FakeIntake(journal, crash_at)
    clock = clock or _Clock()
    options = {"speed": 0.0, "event_time": JsonField("at"), **options}
    parser = EventParser(None, 100)
    source = ReplaySource(path, parser, pause=clock.pause, now_s=clock.now, **options)
    await source.run(intake, journal.position)
    return intake


@pytest.mark.parametrize(("speed", "takes_s"), [(1.0, 3.9), (10.0, 0.39), (0.5, 7.8), (0.0, 0.0)])
async def test_the_speed_scales_the_pauses(recording: Path, speed: float, takes_s: float) -> None:
    """40 events, 100 ms apart, in their order."""
    clock, journal = _Clock(), FakeJournal()
    await _replay(recording, journal, clock=clock, speed=speed)
    assert journal.values == _lines(40)
    assert clock.s - 100 == pytest.approx(takes_s, abs=0.05)


async def test_the_disorder_is_that_of_the_seed(recording: Path) -> None:
    """The same seed gives the same order, another one another."""
    orders = []
    for seed in (3, 3, 4):
        journal = FakeJournal()
        disorder = Disorder(up_to_ms=500, late_share=0.1, late_by_ms=5_000, seed=seed)
        await _replay(recording, journal, disorder=disorder)
        assert sorted(journal.values) == sorted(_lines(40))
        orders.append(journal.values)
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != _lines(40)


async def test_the_pace_does_not_change_the_order(recording: Path) -> None:
    """Without pauses the order is that of the plan, too."""
    fast, slow = FakeJournal(), FakeJournal()
    await _replay(recording, fast, disorder=_DISORDER)
    await _replay(recording, slow, disorder=_DISORDER, speed=1.0)
    assert fast.values == slow.values


@pytest.mark.parametrize("speed", [0.0, 1.0])
async def test_wherever_it_crashes_it_goes_on_in_the_same_order(
    recording: Path, speed: float
) -> None:
    whole = FakeJournal()
    await _replay(recording, whole, disorder=_DISORDER)
    for crash_at in (1, 2, 5, 6, 31, 32):
        journal = FakeJournal()
        try:
            await _replay(recording, journal, disorder=_DISORDER, speed=speed, crash_at=crash_at)
        except CrashedError:
            journal.lose(0.5)
        await _replay(recording, journal, disorder=_DISORDER, speed=speed)
        assert journal.values == whole.values


async def test_a_finished_replay_is_not_begun_again(recording: Path) -> None:
    """A restart after the end sends nothing."""
    journal = FakeJournal()
    await _replay(recording, journal)
    await _replay(recording, journal)
    assert len(journal.values) == 40


async def test_another_recording_or_order_cannot_be_gone_on_with(recording: Path) -> None:
    """The position would mean other events."""
    journal = FakeJournal()
    await _replay(recording, journal)
    with pytest.raises(PositionError, match="seed, disorder"):
        await _replay(recording, journal, disorder=_DISORDER)
    with recording.open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(PositionError, match="has changed"):
        await _replay(recording, journal)


async def test_lines_without_a_time_are_refused(tmp_path: Path) -> None:
    """As are those that are no JSON; blank ones are passed over; each once."""
    path = tmp_path / "odd.jsonl"
    path.write_bytes(b'{"at":1}\nnul\n\n{"at":"soon"}\n{}\n{"at":2}\n' + b"1" * 200)
    journal = FakeJournal()
    intake = await _replay(path, journal, speed=1.0)
    assert journal.values == [b'{"at":1}', b'{"at":2}']
    assert [(where, reason.split(":")[0]) for _, where, reason in intake.refused] == [
        (f"{path} line 2 byte 9", "no JSON"),
        (f"{path} line 4 byte 14", "no event time in at"),
        (f"{path} line 5 byte 28", "no event time in at"),
        (f"{path} line 7 byte 40", "too long"),
    ]
    again = await _replay(path, journal, speed=1.0)
    assert again.refused == []


@pytest.mark.parametrize("content", [b"", b"\n\n"])
async def test_an_empty_recording_ends_at_once(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "empty"
    path.write_bytes(content)
    journal = FakeJournal()
    await _replay(path, journal)
    assert journal.values == []


async def test_a_missing_recording_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="missing cannot be read"):
        await _replay(tmp_path / "missing", FakeJournal())


async def test_it_stops_when_told_to(recording: Path) -> None:
    intake = FakeIntake()

    async def stop(stopping: asyncio.Event, seconds: float) -> None:
        assert seconds > 0
        stopping.set()

    source = ReplaySource(recording, EventParser(None, 100), event_time=JsonField("at"), pause=stop)
    await source.run(intake, None)
    assert intake.values == _lines(1)


async def test_a_recording_in_seconds_is_replayed_at_its_pace(tmp_path: Path) -> None:
    """As the reorder job reads the same events, by the same setting."""
    path = tmp_path / "seconds.jsonl"
    lines = [b'{"meta.at":%d.5}' % (1_700_000_000 + number) for number in range(5)]
    path.write_bytes(b"\n".join(lines))
    event_time, written = time_of("json:meta.at as s")
    clock, journal = _Clock(), FakeJournal()
    await _replay(path, journal, clock=clock, event_time=event_time, written=written, speed=1.0)
    assert journal.values == lines
    assert clock.s - 100 == pytest.approx(4.0, abs=0.05)


@pytest.mark.promise("in-recording-bad-clock")
@pytest.mark.parametrize("place", [0, 2, 5])
@pytest.mark.parametrize("bad", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "0", "1e300"])
async def test_one_event_of_a_bad_clock_holds_up_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, place: int, bad: str
) -> None:
    """It is sent in its place, and the others at their pace."""
    times = [f"2026-11-27T10:00:0{number}Z" for number in range(6)]
    times[place] = bad
    lines = [msgspec.json.encode({"n": n, "at": time}) for n, time in enumerate(times)]
    path = tmp_path / "recording"
    path.write_bytes(b"\n".join(lines))
    clock, journal = _Clock(), FakeJournal()
    intake = await _replay(path, journal, clock=clock, speed=10.0)
    assert journal.values == lines
    assert intake.refused == []
    assert clock.s - 100 == pytest.approx(0.5, abs=0.11)
    (told,) = [one for one in caplog.records if one.levelname == "WARNING"]
    assert "far from all others" in told.getMessage()


@pytest.mark.promise("in-source-waits")
async def test_a_long_pause_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With its length, once a minute at most; a short one is not."""
    gaps_s = [5, 3_600, *[15] * 8]
    times_s = list(accumulate(gaps_s, initial=1_700_000_000))
    path = tmp_path / "recording"
    path.write_bytes(b"".join(b'{"at":%d}\n' % (1000 * time_s) for time_s in times_s))
    journal = FakeJournal()
    await _replay(path, journal, speed=1.0)
    assert len(journal.values) == len(times_s)
    told = [one for one in caplog.records if "not due yet" in one.getMessage()]
    assert len(told) == 3  # the hour, and of the two minutes after it every fourth pause


@pytest.mark.promise("in-source-waits")
@pytest.mark.parametrize(
    "times",
    [
        [-(2**63) + 1, 2**63 - 1, 5],
        [9 * 10**18, -9 * 10**18],
        [0, 2**63 - 1],
    ],
)
async def test_times_at_the_ends_of_all_time_change_no_order(
    tmp_path: Path, times: list[int]
) -> None:
    """Their difference has no 64 bits: no pause is made for them."""
    path = tmp_path / "recording"
    path.write_bytes(b"".join(b'{"at":%d}\n' % time for time in times))
    journal = FakeJournal()
    clock = _Clock()
    await _replay(path, journal, speed=1.0, clock=clock)
    assert journal.values == [b'{"at":%d}' % time for time in times]
    assert clock.s < 200


@pytest.mark.promise("in-recording-cut")
async def test_a_recording_that_is_cut_while_it_is_replayed_ends_the_replay(
    recording: Path,
) -> None:
    """No part of a line becomes an event or a dead letter."""
    journal = FakeJournal()

    class Cutting(_Clock):
        async def pause(self, stopping: asyncio.Event, seconds: float) -> None:
            await super().pause(stopping, seconds)
            if len(journal.values) == 20:
                os.truncate(recording, 1_000)

    with pytest.raises(SourceError, match="was cut while it was replayed: line "):
        await _replay(recording, journal, speed=1.0, clock=Cutting())
    assert journal.values == _lines(40)[: len(journal.values)]
    assert 20 < len(journal.values) < 40


@pytest.mark.promise("in-source-waits")
@pytest.mark.parametrize(
    ("content", "instead"),
    [
        (b'{"event.at":1}\n{"by":{"n":1}}\n', "and they have the fields /event.at, by.n"),
        (b'{"at":"soon"}\n', "and they have the field at"),
        (b"\x1f\x8b\x08\n", "and their values are not JSON objects"),
    ],
)
async def test_a_recording_without_times_is_refused(
    tmp_path: Path, content: bytes, instead: str
) -> None:
    """Before an event is sent: all of them would be dead letters."""
    path = tmp_path / "recording"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=f"no event of .* has a time, as json:at.*{instead}"):
        await _replay(path, FakeJournal())
