"""Lives of a stream of a user's own: the program in `examples/`, on one checkpoint."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sequitur.cli.topic_reader import read_topic
from sequitur.kafka.partition import KeyPartitioner
from tests.spark.example_program import WAIT_S, example_program

if TYPE_CHECKING:
    import contextlib
    import subprocess
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from random import Random

    from sequitur.producer import KafkaSettings

PARTITIONS = 4
_HOSTS = 23
_FILE_ROWS = 400
_STARTING_S = 8.0
_T0 = 1_700_000_000_000


@dataclass
class SinkLives:
    """Lives of one program on one checkpoint, each ended by SIGKILL but the last.

    Attributes:
        kafka: The broker.
        topic: The topic.
        folder: What belongs to the test.
        random: Of the moments.
        rows: How many rows were given to it so far.
        cut_short: Lives that ended in the middle of a batch.
        options: Settings of Spark, which has none otherwise.
    """

    kafka: KafkaSettings
    topic: str
    folder: Path
    random: Random
    rows: int = 0
    cut_short: int = 0
    options: Mapping[str, str] = field(default_factory=dict)

    def feed(self, files: int = 3) -> None:
        """Add files; their readings are out of order within a file, and in order from one on."""
        for _ in range(files):
            numbers = [*range(self.rows, self.rows + _FILE_ROWS)]
            self.rows += _FILE_ROWS
            self.random.shuffle(numbers)
            lines = [
                json.dumps(
                    {"hostname": f"web-{n % _HOSTS}", "usage": n / 7, "occurred_at": _T0 + n}
                )
                for n in numbers
            ]
            hidden = self.folder / f".{self.rows}"
            hidden.write_text("\n".join(lines))
            os.utime(hidden, (_T0 / 1000 + self.rows, _T0 / 1000 + self.rows))
            (self.folder / "readings").mkdir(exist_ok=True)
            hidden.rename(self.folder / "readings" / f"{self.rows:09d}.json")

    def life(self, *flags: str) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        return example_program(
            "exactly_once_stream.py",
            *(str(self.folder / "readings"), self.topic),
            *("--kafka", self.kafka.bootstrap_servers, "--checkpoint", str(self.folder), *flags),
            log=self.folder / "log",
            options=self.options,
        )

    def live_and_die(self, moment: Callable[[SinkLives, subprocess.Popen[bytes]], None]) -> None:
        """One life: files come, and at the moment it is killed."""
        self.feed()
        with self.life() as program:
            moment(self, program)
        self.cut_short += self._newest("staged") != self._newest("done")

    def while_it_starts(self, program: subprocess.Popen[bytes]) -> None:
        del program
        time.sleep(self.random.uniform(0, _STARTING_S))

    def while_it_is_staged(self, program: subprocess.Popen[bytes]) -> None:
        """When rows of a batch are in files, and it is not staged yet."""

        def is_staging() -> bool:
            named = {*self._names("rows")}
            return any(name.split("-")[0] > self._newest("staged") for name in named)

        self._kill_when(program, is_staging)

    def while_it_is_staged_only(self, program: subprocess.Popen[bytes]) -> None:
        self._kill_when(program, lambda: self._newest("staged") > self._newest("plans"))

    def while_rows_go_out(self, program: subprocess.Popen[bytes]) -> None:
        """When a batch is planned, and not done yet."""
        self._kill_when(program, lambda: self._newest("plans") > self._newest("done"))

    def when_it_is_done(self, program: subprocess.Popen[bytes]) -> None:

        def is_done() -> bool:
            commits = self.folder / "spark" / "commits"
            names = [int(one.name) for one in commits.glob("[0-9]*")] if commits.exists() else []
            return int(self._newest("done") or -1) > max(names, default=-1)

        self._kill_when(program, is_done)

    def finish(self) -> None:
        """The last life writes all there is, and ends by itself."""
        with self.life("--available-now") as program:
            assert program.wait(WAIT_S) == 0, self._said()

    def check(self) -> None:
        """A reader with default settings sees each row once, in order by partition."""
        found: defaultdict[int, list[int]] = defaultdict(list)
        placed = KeyPartitioner(PARTITIONS)
        for record in read_topic(self.kafka, self.topic):
            assert record.key is not None
            assert record.partition == placed.partition(record.key)
            found[record.partition].append(json.loads(record.value or b"")["occurred_at"] - _T0)
        every = [n for numbers in found.values() for n in numbers]
        inversions = sum(
            later < earlier
            for numbers in found.values()
            for earlier, later in itertools.pairwise(numbers)
        )
        lost, doubled = self.rows - len({*every}), len(every) - len({*every})
        assert (lost, doubled, inversions) == (0, 0, 0)

    def _kill_when(self, program: subprocess.Popen[bytes], holds: Callable[[], bool]) -> None:
        """Hold it where it stands when something holds; where it is past already, go on."""
        deadline_s, before = time.monotonic() + WAIT_S, self._newest("done")
        while True:
            assert program.poll() is None, self._said()
            assert time.monotonic() < deadline_s, "it did nothing: " + self._said()
            if holds():
                os.killpg(program.pid, signal.SIGSTOP)
                if holds():
                    return
                os.killpg(program.pid, signal.SIGCONT)
            elif self._newest("done") != before:
                before = self._newest("done")
                self.feed(1)
            time.sleep(0.001)

    def _names(self, part: str) -> list[str]:
        # A look a millisecond: plain strings cost half of the CPU time of paths.
        try:
            names = os.listdir(f"{self.folder}/sink/{part}")  # noqa: PTH208 - see above
        except FileNotFoundError:
            return []
        return [name for name in names if not name.startswith(".")]

    def _newest(self, part: str) -> str:
        return max(self._names(part), default="")

    def _said(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-3000:]
