"""Which files a run has, and the rows of each: said once, beside them.

The log names the runs that hold rows in each of its entries. A thousand of them, of a thousand
tasks, have a million files, and an entry would consist of their names. So they stand in a document
of the run's own, `runs/<name>/files.json`, which is there before any other names the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sequitur.pipelines.store.documents import check_format, read_document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sequitur.consumer.reorder.sorted_run import Run
    from sequitur.pipelines.store.storage import SparkFolder


_FORMAT: Final = 1


def files_document_name(run: Run) -> str:
    return f"runs/{run.name}/files.json"


def files_document(run: Run) -> dict[str, Any]:
    return {"format": _FORMAT, "files": dict(run.files)}


def files_of(storage: SparkFolder, run: Run) -> Mapping[str, int] | None:
    """Return the files of a run by name, and the rows of each; None if nothing says so."""
    return read_document(storage, files_document_name(run), _files)


def _files(document: Mapping[str, Any]) -> dict[str, int]:
    check_format(document, _FORMAT)
    return {str(name): int(rows) for name, rows in document["files"].items()}
