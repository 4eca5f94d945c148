"""Replay requests are listed once a step, and each is taken in once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sequitur.pipelines.topology import replay, step_runs
from sequitur.pipelines.topology.step_runs import ReplayIntake

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def _listings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    listed: list[Path] = []
    requests = replay.requests

    def counted(folder: Any) -> Any:
        listed.append(folder)
        return requests(folder)

    monkeypatch.setattr(step_runs, "requests", counted)
    return listed


def test_a_tick_lists_its_requests_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What made it due is what it takes in; a step without that look lists them itself."""
    listed = _listings(monkeypatch)
    request = tmp_path / "a.parquet"
    request.touch()
    intake = ReplayIntake(tmp_path)
    assert intake.are_there(taken=())
    assert intake.take() == (request,)
    assert listed == [tmp_path]
    assert intake.take() == (request,)
    assert listed == [tmp_path, tmp_path]


def test_a_request_that_is_taken_in_is_not_taken_again(tmp_path: Path) -> None:
    """Neither while its file is there, nor when it is deleted behind a look."""
    request = tmp_path / "a.parquet"
    request.touch()
    intake = ReplayIntake(tmp_path)
    assert not intake.are_there(taken={"a.parquet"})
    assert intake.are_there(taken=())
    intake.delete({"a.parquet"})
    assert not request.exists()
    assert intake.take() == ()
