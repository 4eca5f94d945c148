"""Plans batches, runs and commits them, and paces them: the query of a job on this machine."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

from sequitur.base.units import milliseconds
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.local.plan_log import PlanLog
from sequitur.pipelines.local.planner import Planner
from sequitur.pipelines.ordering.restarts import Ticks

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from datetime import timedelta
    from threading import Event

    from sequitur.pipelines.local.planner import Ends
    from sequitur.pipelines.ordering.batch_size import BatchSize
    from sequitur.pipelines.ordering.context import JobContext
    from sequitur.pipelines.ordering.engine import ReorderEngine
    from sequitur.pipelines.ordering.restarts import Begin


_PAUSE_FACTOR: Final = 4
"""A job that is up to date takes a quarter of a core, or a step each `_LONGEST_PAUSE_S`."""
_LONGEST_PAUSE_S: Final = 0.1


class LocalQuery:
    """Plans batches, has the engine run them, and commits them; see `restarts.Query`.

    Args:
        job: The job.
        engine: Its engine.
        stop: Set once the job is to stop, behind the step at work.
        watch: Opens what tells where the input ends, for a life.
    """

    def __init__(
        self,
        job: JobContext,
        engine: ReorderEngine,
        stop: Event,
        watch: Callable[[], AbstractContextManager[Ends]],
    ) -> None:
        self._job = job
        self._engine = engine
        self._stop = stop
        self._watch = watch

    def live(self, begin: Begin, size: BatchSize | None) -> Exception | None:
        """See `restarts.Query`."""
        failed = None
        try:
            with self._watch() as ends:
                self._run_batches(begin, size, ends)
        except StopRequestedError:
            pass
        except Exception as error:  # noqa: BLE001 - `Restarts` raises it, if it does not pass
            failed = error
        # The steps that are staged end; a step may fail in that, too.
        self._engine.close()
        return self._engine.failure or failed

    def passes(self, error: Exception) -> bool:
        del error
        return False

    def may_be_loss(self, error: Exception) -> bool:
        del error
        return False

    def _run_batches(self, begin: Begin, size: BatchSize | None, ends: Ends) -> None:
        log = PlanLog.of(self._job.checkpoint, self._engine.input.plans_folder)
        read_ahead = self._engine.read_ahead
        planner = Planner(self._job, log, ends, begin, size, read_ahead=read_ahead)
        ticks = Ticks(self._job, self._engine)
        pace = Pace(self._job.settings.trigger_interval)
        while self._goes_on():
            plan = planner.next(ticks.left_s) if self._is_due(pace, ticks) else None
            if plan is not None:
                pace.begin(is_behind=planner.is_behind)
                # It returns once the batch is staged; `Finisher` releases its rows.
                staged = self._engine.run_batch(plan.batch_id)
                log.commit()
                if staged is not None and staged.run is not None:
                    planner.take(staged.counts.read, staged.run.size_bytes)
            elif self._job.is_bounded:
                return
            ticks.tick_if_due()

    def _goes_on(self) -> bool:
        is_over = self._stop.is_set() or self._job.checkpoint.is_lost
        if (unfit := self._job.unfit()) is not None:
            raise unfit
        return not is_over and self._engine.failure is None

    def _is_due(self, pace: Pace, ticks: Ticks) -> bool:
        """Wait until the next batch or a tick may begin. A bounded run waits for neither."""
        left_s = 0.0 if self._job.is_bounded else pace.left_s
        if left_s <= 0:
            pace.is_due()
            return True
        self._stop.wait(min(left_s, ticks.left_s))
        return False


class Pace:
    """When the next batch may begin, by what the one before it takes.

    A step costs about as much with few rows as with some thousands. So without a pause a job that
    is up to date takes a whole core, for rows that would go out as soon with the next step.

    Args:
        interval: Shortest time between the starts of two batches; None for the default.
    """

    def __init__(self, interval: timedelta | None) -> None:
        self._interval_s = None if interval is None else milliseconds(interval) / 1000
        self._begun_s = -math.inf
        self._used_s = self._used_before_s = time.process_time()

    def is_due(self) -> None:
        """Note that computing from now on counts for the next batch, which is read first."""
        self._used_before_s = time.process_time()

    def begin(self, *, is_behind: bool) -> None:
        """Note that a batch begins; `is_behind` says whether it leaves rows unread."""
        is_free = is_behind and self._interval_s is None
        self._begun_s = -math.inf if is_free else time.monotonic()
        self._used_s = self._used_before_s

    @property
    def left_s(self) -> float:
        """Seconds until the next batch may begin, by the processor time used since the last one."""
        interval_s = self._interval_s
        if interval_s is None:
            used_s = time.process_time() - self._used_s
            interval_s = min(_LONGEST_PAUSE_S, _PAUSE_FACTOR * used_s)
        return self._begun_s + interval_s - time.monotonic()
