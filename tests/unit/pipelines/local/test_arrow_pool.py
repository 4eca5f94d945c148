"""Which allocator holds the arrays of a job's driver."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from sequitur.consumer.reorder import ReorderSettings
from sequitur.kafka.settings import KafkaSettings
from sequitur.pipelines.local import job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def _pool() -> Iterator[None]:
    """Begin with Arrow's choice, and put back what is there."""
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.mimalloc_memory_pool())
    yield
    pa.set_memory_pool(before)


@pytest.mark.usefixtures("_pool")
@pytest.mark.parametrize(("named", "used"), [(None, "jemalloc"), ("mimalloc", "mimalloc")])
def test_driver_has_arrays_in_the_pool_that_keeps_little(
    named: str | None, used: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is chosen before the job begins, unless the environment names one."""
    monkeypatch.delenv("ARROW_DEFAULT_MEMORY_POOL", raising=False)
    if named is not None:
        monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", named)
    found: list[str] = []
    begun = lambda *_, **__: found.append(pa.default_memory_pool().backend_name)  # noqa: E731
    monkeypatch.setattr(job, "run_reorder", begun)
    settings = ReorderSettings(
        input_topics=("in",), output_topic="out", event_time="json:at", checkpoint=str(tmp_path)
    )
    job.run_local(KafkaSettings(bootstrap_servers="localhost:1"), settings, stop=Event())
    assert found == [used]
