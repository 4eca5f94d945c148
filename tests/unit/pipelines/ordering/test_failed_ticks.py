"""A step without new rows fails, and Spark gives the next batch before the query has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sequitur.errors import TopicError
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.local.plan_log import PlanLog
from sequitur.testing import ReorderTester

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.pipelines.ordering.engine import ReorderEngine

_AT_MS = 1_700_000_000_000
_SETTINGS = {
    "input_topics": ["in"],
    "output_topic": "out",
    "event_time": "json:at",
    "delay": "10 s",
    "idle_timeout": "1 s",
}


def _tick(tester: ReorderTester, engine: ReorderEngine) -> None:
    engine.tick()  # looks at the input, which is idle from there on
    for _ in range(3):
        tester.now_ms += 60_000
        engine.tick()


def _drain(_tester: ReorderTester, engine: ReorderEngine) -> None:
    engine.drain()


@pytest.mark.parametrize("error", [TopicError("no broker answers"), StopRequestedError()])
@pytest.mark.parametrize("release", [_tick, _drain])
def test_nothing_is_logged_behind_a_step_that_is_not_done(
    release: Callable[[ReorderTester, ReorderEngine], None],
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else each start would take that step for done, and find that its rows are gone."""
    with ReorderTester(_SETTINGS, now_ms=_AT_MS) as tester:
        tester.run([{"value": f'{{"at": {_AT_MS}}}'}])
        engine = tester._opened()
        with monkeypatch.context() as patched:

            def write(*_: Any) -> None:
                raise error

            patched.setattr(engine._steps._job.sink, "write", write)
            with pytest.raises(type(error)):
                release(tester, engine)
        tester.produce([{"value": f'{{"at": {_AT_MS + 1}}}'}])
        plan = tester._plan(engine, PlanLog.of(tester._checkpoint, engine.input.plans_folder))
        assert plan is not None
        with pytest.raises(type(error)):
            engine.run_batch(plan.batch_id)
        tester.restart()
        tester.run()
        tester.drain()
        assert (tester.totals.read, len(tester.released) + len(tester.late)) == (2, 2)
