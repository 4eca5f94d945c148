"""A step that fails of a file that is gone says so, whatever its tasks have said."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.reorder import ReorderSettings
from sequitur.errors import CheckpointError, SinkError
from sequitur.pipelines.ordering.step import Steps

if TYPE_CHECKING:
    from collections.abc import Callable


def _steps(fails: Callable[..., Any], check_files: Callable[[], None]) -> Steps:
    entry = SimpleNamespace(step=0)
    log: Any = SimpleNamespace(check_files=check_files, entry=entry, write_entry=fails)
    runs: Any = SimpleNamespace(due=fails)
    outputs: Any = SimpleNamespace(released=SimpleNamespace(partitions=3))
    settings = ReorderSettings.model_validate(
        {"input_topics": ["in"], "output_topic": "out", "event_time": "json:at", "delay": "1 s"}
        | {"checkpoint": "/x"}
    )
    job: Any = SimpleNamespace(
        settings=settings,
        is_bounded=True,
        outages=SimpleNamespace(tell=print),
        steady_s=lambda: 0.0,
        on_step=None,
        subscription=None,
        checkpoint=SimpleNamespace(new_name=fails),
    )
    return Steps(job, log, runs, outputs, 3)


def _fails(*_: object) -> None:
    raise SinkError("FileNotFoundError: part-0.parquet")


@pytest.mark.promise("order-file-rows-held")
@pytest.mark.parametrize("staged", [None, SimpleNamespace(step=0)])
def test_lost_file_is_named_by_the_log(staged: Any) -> None:

    def check_files() -> None:
        raise CheckpointError("runs/0/part-0.parquet, with 30 rows, is gone")

    steps = _steps(_fails, check_files)
    with pytest.raises(CheckpointError, match=r"part-0\.parquet, with 30 rows, is gone"):
        steps.finish_step(staged)


@pytest.mark.parametrize("staged", [None, SimpleNamespace(step=0)])
def test_other_failures_stay_what_they_are(staged: Any) -> None:
    steps = _steps(_fails, lambda: None)
    with pytest.raises(SinkError, match="FileNotFoundError"):
        steps.finish_step(staged)
