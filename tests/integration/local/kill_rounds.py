"""Lives of one job on the local runner, each ended by SIGKILL but the last.

The moment at which a life is killed, how it stages its batches, and whether a process of its tasks
dies before, are drawn each for itself.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import psutil

from tests.spark.checkpoint_places import may_be_taken
from tests.spark.kill_rounds import ROWS_A_BATCH, Rounds
from tests.support.local_job import LocalJob
from tests.support.small_disk import filled
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sequitur.consumer.reorder import ReorderSettings
    from tests.support.brokers import Broker
    from tests.support.job_process import JobProcess

_BURST: Final = 1_200
_STARTING_S: Final = 2.5
_STEPS_S: Final = 0.5
_MORE_PAGES: Final = 7
_DIED_AT_A_TASK: Final = " of 4 at its task"


@dataclass
class LocalRounds(Rounds):
    """Rounds whose lives are those of `LocalJob`.

    Attributes:
        fell: In what of a step lives were killed, and how often; one may be in two.
        workers_killed: Lives in which a process was killed at a task.
    """

    fell: Counter[str] = field(default_factory=Counter)
    workers_killed: int = 0

    def feed(self, events: int = _BURST) -> None:
        super().feed(events)

    def outlive(self, rounds: int) -> dict[str, Any]:
        """So many lives, each killed at a moment that is drawn, and a last one; its report."""
        moments = (
            LocalRounds.in_a_step,
            LocalRounds.while_rows_go_out,
            LocalRounds.between_steps,
            LocalRounds.while_it_starts,
            LocalRounds.at_any_time,
        )
        for _ in range(rounds):
            moment = self.random.choice(moments)
            self.live_and_die(functools.partial(LocalRounds._with_a_worker, moment=moment))
            self.fell.update(self._unfinished() or ["between steps"])
        return self.finish()

    def outlive_broker(self, broker: Broker, rounds: int) -> dict[str, Any]:
        """One life whose broker dies in its steps, so many times, and a last one; its report."""
        with self._life() as life:
            self.feed()
            for _ in range(rounds):
                with self._held_when(life, self._is_logged):
                    is_waiting = _told_again(life, "waiting for Kafka, ")
                    is_answered = _told_again(life, "Kafka answers again, ")
                    broker.kill()
                self._wait_for(life, is_waiting)
                broker.start()
                self._wait_for(life, is_answered)
                self.cut_short += 1
                self.feed()
            life.kill()
        return self.finish()

    def outlive_full_disk(self, disk: Path, rounds: int) -> dict[str, Any]:
        """Lives under which the disk fills up, ever later in a step; and a last one; its report."""
        for number in range(rounds):
            with self._life() as life:
                self.feed()
                self._wait_for(life, self._is_settled)
                with filled(disk, but_for=number * _MORE_PAGES):
                    while life.process.poll() is None:
                        self.feed(ROWS_A_BATCH)
                        wait_until(lambda: self._is_settled() or life.process.poll() is not None)
                    life.end(status=3)
                    said = life.complaints()
                    assert f"No space left on device: '{disk}/" in said, said
            self.fell.update(self._unfinished() or ["between steps"])
        return self.finish()

    def wake_behind(self) -> None:
        """A life is stopped before it plans a batch, and woken once another has committed it."""
        batch = self._next_batch()
        plan, commit = f"spark/offsets/{batch}", f"spark/commits/{batch}"
        with self._stopped_before(plan) as older, self._life() as newer:
            self._wait_for(newer, lambda: self.place.ours.exists(commit))
            _end_as_overtaken(older)
            newer.kill()

    def wake_before(self) -> None:
        """Two lives are stopped before they plan a batch; the older is woken before the other."""
        plan = f"spark/offsets/{self._next_batch()}"
        with self._stopped_before(plan) as older:
            self.feed()  # the newer one would read these, too
            with self._stopped_before(plan) as newer:
                _end_as_overtaken(older)
                planned = self.place.ours.read(plan)
                os.kill(newer.pid, signal.SIGCONT)
                self._wait_for(newer, lambda: not self._unfinished())
                assert self.place.ours.read(plan) == planned
                newer.kill()

    def _next_batch(self) -> int:
        """Return the batch after the next one, which a life begins with."""
        return int(self._newest("spark/offsets") or -1) + 2

    @contextlib.contextmanager
    def _stopped_before(self, plan: str) -> Iterator[LocalJob]:
        """A life that has looked whether it is the owner, and has not written a plan."""
        with self._life(stops_before=plan) as life:
            self.feed()
            self._wait_for(life, life.is_stopped)
            assert not self.place.ours.exists(plan)
            self._wait_for(life, lambda: may_be_taken(self.place.ours, watches=False))
            yield life

    def at_any_time(self, life: JobProcess) -> None:
        """Some time after its first step, whatever it does then."""
        assert next(life.steps(), None) is not None, life.complaints()
        time.sleep(self.random.uniform(0, _STEPS_S))

    def while_it_starts(self, life: JobProcess) -> None:
        """Anywhere between the start of the program and its first steps."""
        del life
        time.sleep(self.random.uniform(0, _STARTING_S))

    def _with_a_worker(self, life: JobProcess, moment: Any) -> None:
        """The moment; where processes do tasks, one of them may die before."""
        assert isinstance(life, LocalJob)
        if life.has_workers and (not self.workers_killed or self.random.random() < 0.5):
            self._kill_worker(life)
        moment(self, life)

    def _kill_worker(self, life: LocalJob) -> None:
        """Kill one process after the other until one was at a task."""
        newest = self._newest("done")

        def is_told() -> bool:
            nonlocal newest
            if _DIED_AT_A_TASK in life.complaints():
                return True
            if self._newest("done") != newest:
                newest = self._newest("done")
                self.feed(ROWS_A_BATCH)
            if workers := life.workers():
                worker = self.random.choice(workers)
                with contextlib.suppress(psutil.NoSuchProcess):
                    worker.kill()
                psutil.wait_procs([worker], timeout=1)
            return False

        self._wait_for(life, is_told)
        self.workers_killed += 1

    def _life(
        self,
        *flags: str,
        settings: ReorderSettings | None = None,
        stops_before: str | None = None,
    ) -> LocalJob:
        way = self.random.choice(self.ways)
        settings = (settings or self.settings).model_copy(update=way)
        return LocalJob(self.kafka, settings, *flags, stops_before=stops_before, **self.job)

    def _is_in_a_step(self) -> bool:
        return bool(self._unfinished())

    def _unfinished(self) -> list[str]:
        """What is begun and not finished, by the documents that are there."""
        staged, frontier = self._newest("staged"), self._newest("frontier")
        planned, committed = self._newest("spark/offsets"), self._newest("spark/commits")
        found = []
        if planned != committed:
            document = json.loads(self.place.ours.read(f"staged/{staged}")) if staged else {}
            is_staged = document.get("batch_id", -1) >= int(planned)
            found.append("staged, not committed" if is_staged else "planned, not staged")
        if staged > frontier:
            found.append("staged, not decided")
        if frontier > self._newest("done"):
            is_planned = self._newest("plans") >= frontier
            found.append("going out" if is_planned else "decided, not going out")
        return found


def _end_as_overtaken(life: JobProcess) -> None:
    os.kill(life.pid, signal.SIGCONT)
    life.end(status=3)
    assert "has taken this checkpoint over" in life.complaints()


def _told_again(life: JobProcess, words: str) -> Callable[[], bool]:
    """Return what tells whether it has said this once more than by now."""
    told = life.complaints().count(words)
    return lambda: life.complaints().count(words) > told
