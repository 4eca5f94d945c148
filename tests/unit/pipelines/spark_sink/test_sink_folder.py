"""The folder of the exactly-once sink: how far its log has got, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sequitur.errors import CheckpointError
from sequitur.pipelines.spark_sink.batch_documents import BatchDone
from sequitur.pipelines.spark_sink.batch_source import StreamBatch
from sequitur.pipelines.spark_sink.sink_folder import SinkFolder
from sequitur.pipelines.store.step_folder import LogEnd
from sequitur.pipelines.store.storage import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Iterator

_FORMS = json.loads((Path(__file__).parents[3] / "golden" / "0.1.0" / "forms.json").read_text())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "sink"


@pytest.fixture
def folder(root: Path) -> Iterator[SinkFolder]:
    folder = SinkFolder(LocalStorage(root))
    folder.claim("readings", "app")
    yield folder
    folder.close()


def _put(root: Path, name: str, form: str, **changes: object) -> None:
    (root / name).write_text(json.dumps(_FORMS[form]["document"] | changes))


def test_log_of_the_first_release_is_gone_on_with(root: Path, folder: SinkFolder) -> None:
    """A batch is staged and done; then one is staged, and is the one to finish."""
    assert LogEnd(folder).is_entry_done
    _put(root, "staged/000000000003", "sink: staged")
    _put(root, "done/000000000003", "sink: done")
    log = LogEnd(folder)
    assert log.entry is not None
    assert log.entry.source == StreamBatch("6f9e", 12, "plan-注文")
    assert (log.is_entry_done, log.done.rows) == (True, 7)
    _put(root, "staged/000000000004", "sink: staged by name", step=4)
    log = LogEnd(folder)
    assert not log.is_entry_done
    log.mark_done(BatchDone(4, 0, None))
    assert LogEnd(folder).is_entry_done


@pytest.mark.promise("sink-checkpoint-damaged-lacks")
@pytest.mark.parametrize(
    ("staged", "done", "told"),
    [
        (3, 4, "step 4 is done, but the last in staged/ is 3: part of the log is gone"),
        (3, 1, "step 3 is staged, but the last in done/ is 1: part of the log is gone"),
    ],
)
def test_log_that_has_lost_documents_is_refused(
    root: Path, folder: SinkFolder, staged: int, done: int, told: str
) -> None:
    _put(root, f"staged/{staged:012d}", "sink: staged", step=staged)
    _put(root, f"done/{done:012d}", "sink: done", step=done)
    with pytest.raises(CheckpointError, match=told):
        LogEnd(folder)


@pytest.mark.promise("sink-checkpoint-damaged-lacks")
def test_rows_that_are_gone_are_told_by_file(root: Path, folder: SinkFolder) -> None:
    _put(root, "staged/000000000000", "sink: staged", step=0)
    staged = LogEnd(folder).entry
    assert staged is not None
    with pytest.raises(CheckpointError, match=r"rows/f/ü.parquet, with rows of batch 12"):
        folder.check_rows(staged)
    (root / "rows" / "f").mkdir()
    (root / "rows" / "f" / "ü.parquet").touch()
    folder.check_rows(staged)


@pytest.mark.promise("sink-checkpoint-damaged-lacks")
def test_document_of_another_version_is_refused_with_the_way_out(
    root: Path, folder: SinkFolder
) -> None:
    _put(root, "done/000000000003", "sink: done", format=2)
    with pytest.raises(CheckpointError, match=r"done/0+3 .*2, this version reads 1: run the vers"):
        LogEnd(folder)
