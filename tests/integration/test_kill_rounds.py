"""`kill -9` of the daemon at any moment, again and again: the topic still holds the file, once.

Under load it is killed when its journal holds batches without an answer, so that the next life has
something to take over, on a fast machine and on a slow one. While it starts it is killed after a
random time: nothing is claimed of that moment.

`SEQUITUR_KILL_ROUNDS=50` runs as many rounds as the project promises to outlive, and
`SEQUITUR_KILL_SEED` chooses other moments than the usual ones.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Protocol

import pytest

from sequitur.producer import EVENT_ID_HEADER, parse_event_id
from sequitur.producer.journal.report import inspect_journal
from tests.support.daemon_process import DaemonProcess, read_partitions
from tests.support.log_file import LogFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker

pytestmark = [pytest.mark.kill, pytest.mark.slow]

_ROUNDS = max(1, int(os.environ.get("SEQUITUR_KILL_ROUNDS", "6")))
_SEED = int(os.environ.get("SEQUITUR_KILL_SEED", "4"))
_DISTURBED_ROUNDS = max(4, _ROUNDS if _ROUNDS > 10 else _ROUNDS * 3 // 5)
"""A restart of the broker takes seconds, and CI has but a minute."""
_FEW_ROUNDS = max(1, _ROUNDS * 2 // 5)
"""For what differs from the others in little."""
_MOST_MOMENTS = 4
_PARTITIONS = 4
_KEYS = 23
_STEP_LINES = 3_000
_BACKLOG_LINES = 2 * _STEP_LINES
_STEPS_PER_ROTATION = 7
_RECORDED_LINES = 200_000
_STARTING_S = 0.2
_ROUND_TIMEOUT_S = 600


@dataclass
class GrowingFile:
    """Numbered events in a file, which grows by bursts that end anywhere in a line."""

    path: Path
    random: Random
    lines: int = 0
    _torn: bytes = b""

    @property
    def source(self) -> str:
        return f"file:{self.path}"

    def grow(self, lines: int) -> None:
        """Append so many lines; of the last one, some bytes only."""
        new = _lines(self.lines, lines)
        self.lines += lines
        cut = self.random.randrange(1, 20)
        with self.path.open("ab") as file:
            file.write(self._torn + new[:-cut])
        self._torn = new[-cut:]

    def finish(self) -> None:
        """Append what is missing of the last line."""
        with self.path.open("ab") as file:
            file.write(self._torn)
        self._torn = b""


@dataclass
class RotatedFile:
    """Numbered events in a log file that is rotated, a few times in each life."""

    path: Path
    lines: int = 0
    _steps: int = 0

    @property
    def source(self) -> str:
        return f"file:{self.path}"

    def grow(self, lines: int) -> None:
        """Append half of the lines, rotate at times, and append the other half."""
        self._append(lines // 2)
        self._steps += 1
        if self._steps % _STEPS_PER_ROTATION == 0:
            LogFile(self.path).rotate()
        self._append(lines // 2)

    def finish(self) -> None:
        """All lines are whole."""

    def _append(self, lines: int) -> None:
        LogFile(self.path).append(_lines(self.lines, lines))
        self.lines += lines


@dataclass
class Recording:
    """Numbered events that were recorded before; they do not grow."""

    path: Path
    lines: int

    def __post_init__(self) -> None:
        self.path.write_bytes(_lines(0, self.lines))

    @property
    def source(self) -> str:
        return f"replay:{self.path}"

    def grow(self, lines: int) -> None:
        """It is all there."""

    def finish(self) -> None:
        """It is all there."""


@dataclass
class FillingFolder:
    """Numbered events in files, which come one by one."""

    path: Path
    lines: int = 0

    @property
    def source(self) -> str:
        return f"dir:{self.path}"

    def grow(self, lines: int) -> None:
        """Put three more files there, with so many lines together."""
        for _ in range(3):
            hidden = self.path / ".new"
            hidden.write_bytes(_lines(self.lines, lines // 3))
            hidden.rename(self.path / f"{self.lines:09}")
            self.lines += lines // 3

    def finish(self) -> None:
        """All files are whole."""


Growing = GrowingFile | RotatedFile | Recording | FillingFolder


class MakeRounds(Protocol):
    """Makes the rounds of a daemon with these settings."""

    def __call__(self, growing: Growing, *settings: str) -> Rounds:
        """For what it reads."""


def _lines(first: int, count: int) -> bytes:
    return b"".join(
        b'{"n":%d,"k":"key-%d","t":%d,"text":"%b"}\n' % (n, n % _KEYS, n, b"." * (n % 100))
        for n in range(first, first + count)
    )


@dataclass
class Rounds:
    """Lives of a daemon that reads what grows, each ended by SIGKILL but the last."""

    broker: Broker
    topic: str
    folder: Path
    random: Random
    growing: Growing
    settings: tuple[str, ...] = ()
    recovered: int = 0

    def start(self, *arguments: str) -> DaemonProcess:
        return DaemonProcess(
            self.broker.bootstrap_servers,
            self.folder / "state",
            *("--topic", self.topic, "--source", self.growing.source, "--key", "json:k"),
            *("--name", "survivor", "--journal", str(self._journal), "--poll-interval", "10 ms"),
            *(*self.settings, *arguments),
        )

    @property
    def _journal(self) -> Path:
        return self.folder / "journal"

    def live_and_die(self, *, while_loaded: bool) -> None:
        """One life: killed while it starts and takes its past over, or while it is busy."""
        with self.start() as daemon:
            if while_loaded:
                self.recovered += daemon.wait_for("producer started")["recovered"]
                self.kill_loaded(daemon)
            else:
                daemon.wait_for("starting")
                self.growing.grow(_STEP_LINES)
                time.sleep(self.random.uniform(0, _STARTING_S))
                daemon.kill()

    def kill_loaded(self, daemon: DaemonProcess) -> None:
        """Kill it while batches are on their way; the file grows until some are."""
        daemon.kill_with_unacked_batches(
            self._journal,
            self.feed,
            times=self.random.randrange(1, _MOST_MOMENTS),
        )

    def feed(self) -> None:
        """Let it grow, unless there is enough to be read."""
        if inspect_journal(self._journal).next_event + _BACKLOG_LINES > self.growing.lines:
            self.growing.grow(_STEP_LINES)

    def finish(self, *settings: str) -> None:
        """The last life, also with these settings, reads to the file's end, and ends by itself."""
        self.growing.finish()
        with self.start("--no-follow", *settings) as daemon:
            report = daemon.end()
        self.recovered += report["recovered"]
        assert self.recovered > 0, "no life was ended in the middle of anything"
        assert report["name"] == "survivor"
        assert report["not_persisted"] == report["possibly_persisted"] == 0

    def check(self) -> None:
        """Nothing is lost, doubled or out of order."""
        partitions = read_partitions(self.broker.bootstrap_servers, self.topic)
        numbers = [[json.loads(m.value())["n"] for m in partition] for partition in partitions]
        disorders = sum(a >= b for partition in numbers for a, b in pairwise(partition))
        found = [n for partition in numbers for n in partition]
        lost = set(range(self.growing.lines)) - set(found)
        assert (len(lost), len(found) - len(set(found)), disorders) == (0, 0, 0)
        ids = [
            parse_event_id(dict(message.headers())[EVENT_ID_HEADER])
            for partition in partitions
            for message in partition
        ]
        assert {event_id.producer for event_id in ids} == {"survivor"}
        assert [event_id.sequence for event_id in ids] == found


@pytest.fixture
def make_rounds(broker: Broker, make_topic: MakeTopic, tmp_path: Path) -> MakeRounds:
    topic = make_topic(partitions=_PARTITIONS)
    return lambda growing, *settings: Rounds(
        broker, topic, tmp_path, Random(_SEED), growing, settings
    )


@pytest.fixture
def rounds(make_rounds: MakeRounds, tmp_path: Path) -> Rounds:
    return make_rounds(GrowingFile(tmp_path / "events.jsonl", Random(_SEED)))


@pytest.mark.promise("in-daemon-producer-killed")
@pytest.mark.timeout(_ROUND_TIMEOUT_S + _ROUNDS * 20)
def test_killing_the_daemon_loses_and_doubles_nothing(rounds: Rounds) -> None:
    """Half the times while it starts, half the times under load."""
    for number in range(_ROUNDS):
        rounds.live_and_die(while_loaded=number % 2 == 1)
    rounds.finish()
    rounds.check()


@pytest.mark.promise("in-broker-paused-killed")
@pytest.mark.own_broker
@pytest.mark.either_broker
@pytest.mark.timeout(_ROUND_TIMEOUT_S + _ROUNDS * 20)
def test_killing_it_with_the_broker_disturbed_loses_and_doubles_nothing(rounds: Rounds) -> None:
    """The broker is paused, or killed and restarted, while the daemon dies and comes again."""
    broker = rounds.broker
    disturbances: list[tuple[Callable[[], object], Callable[[], object]]] = [
        (broker.pause, broker.resume),
        (lambda: None, lambda: None),
        (broker.kill, broker.start),
        (broker.pause, broker.resume),
    ]
    rounds.live_and_die(while_loaded=True)
    for number in range(_DISTURBED_ROUNDS):
        begin, end = disturbances[number % len(disturbances)]
        with rounds.start() as daemon:
            rounds.recovered += daemon.wait_for("producer started")["recovered"]
            rounds.growing.grow(_STEP_LINES)
            begin()
            rounds.kill_loaded(daemon)
        if number % 2:
            # The next life meets the disturbed broker, and dies of something else.
            rounds.live_and_die(while_loaded=False)
        end()
    rounds.finish()
    rounds.check()


@pytest.mark.promise("in-daemon-reads-folder")
@pytest.mark.timeout(_ROUND_TIMEOUT_S + _ROUNDS * 20)
def test_killing_it_between_files_loses_and_doubles_nothing(
    make_rounds: MakeRounds, tmp_path: Path
) -> None:
    """Of a folder: a file that was sent and not renamed yet is not sent again."""
    folder = tmp_path / "spool"
    folder.mkdir()
    rounds = make_rounds(FillingFolder(folder))
    for _ in range(max(1, _ROUNDS // 2)):
        rounds.live_and_die(while_loaded=True)
    rounds.finish()
    rounds.check()
    assert {path.suffix for path in folder.iterdir()} == {".done"}


@pytest.mark.promise("in-daemon-reads-folder")
@pytest.mark.timeout(_ROUND_TIMEOUT_S + _ROUNDS * 20)
def test_killing_it_with_an_async_journal_loses_and_doubles_nothing(
    make_rounds: MakeRounds, tmp_path: Path
) -> None:
    """What it has written is the kernel's, and outlives the process, if not a power cut."""
    growing = GrowingFile(tmp_path / "events.jsonl", Random(_SEED))
    rounds = make_rounds(growing, "--durability", "journal-async")
    for number in range(_FEW_ROUNDS):
        rounds.live_and_die(while_loaded=number % 4 < 3)
    rounds.finish()
    rounds.check()


@pytest.mark.timeout(_ROUND_TIMEOUT_S + _ROUNDS * 20)
def test_killing_it_while_the_file_is_rotated_loses_and_doubles_nothing(
    make_rounds: MakeRounds, tmp_path: Path
) -> None:
    """Its position is in a file that has another name by the next start."""
    log = RotatedFile(tmp_path / "events.jsonl")
    rounds = make_rounds(log, "--rotate-wait", "50 ms")
    LogFile(log.path).append(b"")
    with rounds.start("--no-follow") as daemon:
        daemon.end()  # so that it has been at this file; what was rotated before is not its own
    for number in range(_FEW_ROUNDS):
        rounds.live_and_die(while_loaded=number % 4 < 3)
    rounds.finish()
    rounds.check()


@pytest.mark.promise("in-daemon-reads-folder")
@pytest.mark.timeout(_ROUND_TIMEOUT_S + _ROUNDS * 20)
def test_killing_a_replay_loses_and_doubles_nothing(
    make_rounds: MakeRounds, tmp_path: Path
) -> None:
    """The next start goes on in the recording where the journal says."""
    recording = Recording(tmp_path / "recorded.jsonl", _RECORDED_LINES)
    # At its own speed the recording lasts for minutes, so no life comes to its end but the last.
    rounds = make_rounds(recording, "--speed", "1", "--replay-event-time", "json:t")
    for _ in range(_FEW_ROUNDS):
        rounds.live_and_die(while_loaded=True)
    rounds.finish("--speed", "0")
    rounds.check()
