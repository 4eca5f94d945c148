"""What a step stages, without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer import ReorderSettings
from sequitur.pipelines.ordering.newest_step import NewestStep
from sequitur.pipelines.ordering.steps import Steps
from sequitur.pipelines.store.checkpoint import Checkpoint
from sequitur.pipelines.store.job_identity import JobIdentity
from sequitur.pipelines.store.storage import LocalStorage

if TYPE_CHECKING:
    from pathlib import Path

_PLAN = 'v1\n{}\n{"in":{"0":1}}'


def test_attempt_at_staging_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """No document names it, and the disk may be full; what another attempt has written stays."""
    checkpoint = Checkpoint(LocalStorage(tmp_path))
    checkpoint.claim(JobIdentity(("in",), None, "json:at", "out", 3, "ordered"))
    (tmp_path / "spark" / "offsets").mkdir(parents=True)
    (tmp_path / "spark" / "offsets" / "0").write_text(_PLAN)

    def failing(*_: object, name: str, **__: object) -> None:
        folder: Any = checkpoint.new_folder(f"runs/{name}")
        (folder / "part-1.parquet").write_bytes(b"1")
        raise OSError("No space left on device")

    told = {"input_topics": ["in"], "output_topic": "out", "event_time": "json:at", "delay": "1 s"}
    settings = ReorderSettings.model_validate({**told, "checkpoint": str(tmp_path)})
    job: Any = SimpleNamespace(
        checkpoint=checkpoint,
        settings=settings,
        outages=None,
        is_bounded=True,
        subscription=None,
    )
    runs: Any = SimpleNamespace(stage=failing)
    steps = Steps(job, NewestStep(checkpoint), runs, output_partitions=3)
    other = checkpoint.new_name(0)
    checkpoint.new_folder(f"runs/{other}")
    rows: Any = None
    with pytest.raises(OSError, match="No space"):
        steps.stage(rows, 0)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [other]
    checkpoint.close()
