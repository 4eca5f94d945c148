"""Jobs on a cluster: each kind is fed, started, ended and judged alike; and what disturbs them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from tests.support.held import held
from tests.support.spark_cluster import WORKERS, small_application
from tests.support.spark_event_log import SparkEventLog, logged_to
from tests.support.values import replace
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import psutil

    from tests.spark.kill_rounds import Rounds
    from tests.spark.sink_lives import SinkLives
    from tests.support.job_process import JobProcess
    from tests.support.spark_cluster import SparkCluster

_EVENTS: Final = 600  # of topologies the 501st is one that always fails
_TIMEOUT_S: Final = 8 * PATIENCE_S
_POLL_S: Final = 0.05


class ClusterJob(Protocol):
    """A job, and what is looked at of it."""

    def feed(self) -> None:
        """Give it events."""

    def life(
        self, options: Mapping[str, str], *, is_bounded: bool
    ) -> contextlib.AbstractContextManager[subprocess.Popen[Any]]:
        """One life of it; a bounded one ends when all there is is out."""

    def is_at_work(self) -> bool:
        """Whether it has begun to read something that is not out yet."""

    def done(self) -> str:
        """Return the newest step that is done."""

    def end(self, process: subprocess.Popen[Any]) -> None:
        """Wait for a bounded life; another one is ended, and a bounded one does the rest."""

    def said(self) -> str:
        """Return what the newest life complained of."""

    def check(self) -> None:
        """Nothing is lost, doubled or out of order."""


@dataclass
class OrderedJob:
    """A reorder job, with what is behind it.

    Attributes:
        rounds: Its lives.
        judge: Judges its outputs by the last life's report.
        drains: Whether a life drains when it is told to end. Rows that come later are then behind
            timers that were called for it.
    """

    rounds: Rounds
    judge: Callable[[dict[str, Any]], object]
    drains: bool = True
    _life: JobProcess | None = None
    _is_bounded: bool = True
    _report: dict[str, Any] = field(default_factory=dict)

    def feed(self) -> None:
        self.rounds.feed(_EVENTS)

    @contextlib.contextmanager
    def life(
        self, options: Mapping[str, str], *, is_bounded: bool
    ) -> Iterator[subprocess.Popen[Any]]:
        self.rounds.place = replace(self.rounds.place, options=options)
        self._is_bounded = is_bounded
        flags = ["--drain"] if is_bounded or self.drains else []
        if is_bounded:
            flags.append("--available-now")
        with self.rounds._life(*flags) as life:
            self._life = life
            yield life.process

    def is_at_work(self) -> bool:
        return self.rounds._is_in_a_step()

    def done(self) -> str:
        return self.rounds._newest("done")

    def end(self, process: subprocess.Popen[Any]) -> None:
        if not self._is_bounded:
            process.terminate()
        said = self._said_until_its_end()
        if not self._is_bounded:
            # A step that waits for its next attempt gives way to a signal, and holds its events.
            with self.life(self.rounds.place.options, is_bounded=True) as rest:
                self.end(rest)
            return
        self._report = json.loads(said.splitlines()[-1])

    def _said_until_its_end(self) -> str:
        """Wait as long as steps are done: how long all take is up to the machine."""
        assert self._life is not None
        done = None
        while done != (done := self.done()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._life.end(within_s=_TIMEOUT_S)
        raise TimeoutError(f"no step is done in {_TIMEOUT_S} s: {self.said()}")

    def said(self) -> str:
        """See `ClusterJob`; once it has ended, all of it."""
        assert self._life is not None
        return self._life.complaints()

    def check(self) -> None:
        self.judge(self._report)


@dataclass
class SinkJob:
    """A stream of a user's own with `ExactlyOnceKafka`.

    Attributes:
        lives: Its lives.
        master: Spark's master.
    """

    lives: SinkLives
    master: str
    _is_bounded: bool = True

    def feed(self) -> None:
        self.lives.feed(files=30)

    def life(
        self, options: Mapping[str, str], *, is_bounded: bool
    ) -> contextlib.AbstractContextManager[subprocess.Popen[Any]]:
        self._is_bounded = is_bounded
        self.lives.options = {"spark.master": self.master, **options}
        return self.lives.life(*["--available-now"] * is_bounded)

    def is_at_work(self) -> bool:
        return bool(self.lives._names("rows")) and self.lives._newest("staged") != self.done()

    def done(self) -> str:
        return self.lives._newest("done")

    def end(self, process: subprocess.Popen[Any]) -> None:
        if self._is_bounded:
            assert process.wait(_TIMEOUT_S) == 0, self.said()
            return
        process.terminate()
        process.wait(_TIMEOUT_S)
        self.lives.finish()

    def said(self) -> str:
        return self.lives._said()

    def check(self) -> None:
        self.lives.check()


@dataclass
class Application:
    """A life of a job that the master has given cores to.

    Attributes:
        job: The job.
        cluster: The cluster.
        process: The driver's.
        number: The application's id.
        log: Where its events are.
    """

    job: ClusterJob
    cluster: SparkCluster
    process: subprocess.Popen[Any]
    number: str
    log: Path

    def wait(self, holds: Callable[[], object]) -> None:
        """Wait until something holds, as long as it lives."""
        deadline_s = time.monotonic() + _TIMEOUT_S
        while not holds():
            assert self.process.poll() is None, self.job.said()
            assert time.monotonic() < deadline_s, self.job.said()
            time.sleep(_POLL_S)

    def wait_for_a_step(self) -> None:
        before = self.job.done()
        self.wait(lambda: self.job.done() != before)

    def wait_for_cores(self, cores: int) -> None:
        self.wait(lambda: self.cluster.cores()[self.number] == cores)

    def executors(self) -> list[psutil.Process]:
        """Return the processes of its executors, once there is one for each worker."""
        self.wait(lambda: len(self.cluster.executors(self.number)) == WORKERS)
        return self.cluster.executors(self.number)

    def events(self) -> SparkEventLog:
        """Return what Spark has written of it so far."""
        return SparkEventLog.of(self.log, self.number)


@contextlib.contextmanager
def on_cluster(
    job: ClusterJob,
    cluster: SparkCluster,
    folder: Path,
    *,
    is_bounded: bool = True,
    options: Mapping[str, str] | None = None,
) -> Iterator[Application]:
    """One life, from the moment at which the master's page lists it with cores.

    Args:
        job: The job.
        cluster: The cluster.
        folder: Of the test.
        is_bounded: Whether it ends by itself.
        options: Further settings of Spark.
    """
    (log := folder / "events").mkdir(exist_ok=True)
    settings = {**small_application(), **logged_to(log), **(options or {})}
    before = cluster.cores()
    with job.life(settings, is_bounded=is_bounded) as process:
        application = Application(job, cluster, process, "", log)

        def has_cores() -> bool:
            # One that was killed may be listed for a moment yet.
            for number, cores in cluster.cores().items():
                if number not in before and cores:
                    application.number = number
            return bool(application.number)

        application.wait(has_cores)
        yield application
    # What is logged is not written at once: of a life that was killed there may be nothing.
    assert application.events().masters <= {cluster.url}


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Something that happens to a life.

    Attributes:
        happen: Has it happen, and returns when the life is past it, or over.
        options: Settings of Spark that it needs.
    """

    happen: Callable[[Application], None]
    options: Mapping[str, str] = field(default_factory=dict)


def outlive(
    job: ClusterJob, cluster: SparkCluster, folder: Path, *lives: tuple[Disturbance, ...]
) -> None:
    """Lives of a job, each with its disturbances, and the judgement of what has come of them.

    The last life does the rest, and so none of its disturbances may end it. One without any has
    nothing that says how far it is, and ends by itself: a signal may come before its handler.
    """
    for number, disturbances in enumerate(lives, 1):
        job.feed()  # an application without tasks is given no cores, if allocation is dynamic
        options = {key: value for one in disturbances for key, value in one.options.items()}
        is_bounded = not disturbances
        with on_cluster(job, cluster, folder, is_bounded=is_bounded, options=options) as life:
            for one in disturbances:
                one.happen(life)
            if number == len(lives):
                job.end(life.process)
    job.check()


def _kill_an_executor(life: Application) -> None:
    victim = life.executors()[0]
    life.job.feed()
    life.wait(life.job.is_at_work)
    victim.kill()
    life.wait(lambda: not victim.is_running())
    life.wait(lambda: life.events().removed)
    life.wait_for_a_step()


def _kill_the_driver(life: Application) -> None:
    # The life before it was killed at work, and this one is to do that first.
    life.wait(lambda: not life.job.is_at_work())
    life.job.feed()
    life.wait(life.job.is_at_work)
    os.killpg(life.process.pid, signal.SIGKILL)
    assert life.process.wait() == -signal.SIGKILL


def _hold_a_task(life: Application) -> None:
    """Python stands still on one host, as on a machine that hangs: a copy does its task."""
    life.job.feed()
    executors = life.executors()
    life.wait(lambda: all(one.children() for one in executors))
    with held([one.pid for one in executors[0].children(recursive=True)]):
        life.job.feed()
        life.wait(lambda: life.events().tasks(are_copies=True))
        life.wait_for_a_step()


def _leave_it_idle(life: Application) -> None:
    life.job.feed()
    life.wait_for_a_step()
    life.wait_for_cores(0)
    came = len(life.events().executors)
    life.wait(lambda: len(life.events().removed) == came > 0)
    life.job.feed()
    life.wait_for_a_step()
    assert len(life.events().executors) > came


EXECUTOR_KILLED: Final = Disturbance(_kill_an_executor)
DRIVER_KILLED: Final = Disturbance(_kill_the_driver)
SPECULATION: Final = Disturbance(
    _hold_a_task,
    {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.task.duration.threshold": "2s",  # a stage of one task
    },
)
DYNAMIC_ALLOCATION: Final = Disturbance(
    _leave_it_idle,
    {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
        "spark.dynamicAllocation.executorIdleTimeout": "1s",
    },
)
