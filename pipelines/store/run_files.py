"""Which files a run has, and the rows of each: said once, beside them.

The log names the runs that hold rows in each of its entries. A thousand of them, of a thousand
tasks, have a million files, and an entry would consist of their names. So they stand in a document
of the run's own, `runs/<name>/files.json`, which is there before any other names the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from sequitur.base.stored import load
from sequitur.pipelines.store.documents import read_document

if TYPE_CHECKING:
    from sequitur.consumer.reorder.sorted_run import Run
    from sequitur.pipelines.store.storage import SparkFolder


class RunFiles(Struct, frozen=True, tag_field="format", tag=1):
    """The names of a run's files, and the rows of each."""

    TITLE: ClassVar = "files of a run"

    files: Mapping[str, int]


def files_document_name(run: Run) -> str:
    return f"runs/{run.name}/files.json"


def files_of(storage: SparkFolder, run: Run) -> Mapping[str, int] | None:
    """Return the files of a run by name, and the rows of each; None if nothing says so."""
    found = read_document(storage, files_document_name(run), partial(load, RunFiles))
    return None if found is None else found.files
