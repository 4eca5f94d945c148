"""A step that fails of a file that is gone says so, whatever its tasks have said."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.errors import CheckpointError, SinkError
from sequitur.pipelines.ordering.step_runner import StepRunner

if TYPE_CHECKING:
    from collections.abc import Callable


def _runner(fails: Callable[..., Any], check_files: Callable[[], None]) -> StepRunner:
    newest: Any = SimpleNamespace(check_files=check_files, done=None)
    steps: Any = SimpleNamespace(decide=fails)
    outputs: Any = SimpleNamespace(write=fails)
    job: Any = SimpleNamespace(now_ms=lambda: 0, on_done=lambda *_: None, subscription=None)
    return StepRunner(job, newest, steps, outputs, None)


def _fails(*_: object) -> None:
    raise SinkError("FileNotFoundError: part-0.parquet")


@pytest.mark.parametrize("begin", ["finish", "finish_staged"])
def test_lost_file_is_named_by_the_log(begin: str) -> None:

    def check_files() -> None:
        raise CheckpointError("runs/0/part-0.parquet, with 30 rows, is gone")

    runner = _runner(_fails, check_files)
    step: Any = SimpleNamespace(step=0)
    with pytest.raises(CheckpointError, match=r"part-0\.parquet, with 30 rows, is gone"):
        getattr(runner, begin)(step)


@pytest.mark.parametrize("begin", ["finish", "finish_staged"])
def test_other_failures_stay_what_they_are(begin: str) -> None:
    runner = _runner(_fails, lambda: None)
    step: Any = SimpleNamespace(step=0)
    with pytest.raises(SinkError, match="FileNotFoundError"):
        getattr(runner, begin)(step)
