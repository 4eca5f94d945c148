"""The folder in which an exactly-once sink keeps its state.

::

    format.json     whose folder this is: the topic, and the sink's name in Kafka
    outputs.json    the name and the Kafka cluster that the sink's producer id belongs to
    owners/, heartbeats/    which process has it: see `store.ownership`
    rows/<name>/    Parquet: a batch's rows, by output partition and in order
    staged/<step>   JSON: which batch it is, and its files; from then on Spark's rows count no more
    plans/<step>    JSON: under which sequences its rows go out, written before any does
    names/<hash>    JSON: a DataFrame's name, and its step
    done/<step>     JSON: written once all of it is acknowledged
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Final
from uuid import uuid4

from sequitur.base.stored import dump, load
from sequitur.errors import CheckpointError
from sequitur.pipelines.spark_sink.batch_documents import (
    NOTHING_DONE,
    BatchDone,
    StagedBatch,
    WrittenName,
)
from sequitur.pipelines.spark_sink.batch_source import NamedBatch
from sequitur.pipelines.store.step_folder import StepFolder

_FOLDER_FORMAT: Final = 1
_KIND: Final = "sequitur-spark-sink"
_DOCUMENTS: Final = ("staged", "plans", "names", "done")
_ROWS: Final = "rows"


class SinkFolder(StepFolder[StagedBatch, BatchDone]):
    _LOG = "staged"
    _BY_STEP = ("staged", "plans", "done")
    _PUT_BACK = "Put it back whole, from its newest copy"
    _OTHER_VERSION = "run the version that wrote it, or give the sink a checkpoint and a topic"

    def claim(self, topic: str, app: str | None) -> str:
        """Make the folder the sink of a topic, or check that it is; then take it over."""
        found = self._made_by(
            {
                "format": _FOLDER_FORMAT,
                "kind": _KIND,
                "topic": topic,
                "app": app or f"spark.{topic}.{uuid4().hex}",
            }
        )
        if found.get("kind") != _KIND:
            raise CheckpointError(f"{self.root} is not an exactly-once sink's")
        if found.get("format") != _FOLDER_FORMAT:
            raise CheckpointError(
                f"{self.root} has format {found.get('format')}, this version reads {_FOLDER_FORMAT}"
            )
        if found.get("topic") != topic:
            raise CheckpointError(
                f"{self.root} belongs to a sink of topic {found.get('topic')!r}, not {topic!r}: "
                "each topic has a checkpoint of its own"
            )
        if app not in {None, found.get("app")}:
            raise CheckpointError(
                f"{self.root} belongs to a sink with app = {found.get('app')!r}, not {app!r}: its "
                "producer id belongs to that name"
            )
        self._take((*_DOCUMENTS, _ROWS), _DOCUMENTS)
        return str(found["app"])

    def latest(self) -> tuple[StagedBatch | None, BatchDone]:
        """Return the newest staged batch, and the newest done one."""
        staged, done = self._newest_steps(StagedBatch, BatchDone, NOTHING_DONE)
        if staged is not None and done.step < staged.step - 1:
            raise self._torn(f"step {staged.step} is staged, but the last in done/ is {done.step}")
        return staged, done

    def check_rows(self, staged: StagedBatch) -> None:
        folder = f"{_ROWS}/{staged.folder}"
        if gone := self._gone(folder, [file.name for file in staged.files]):
            raise CheckpointError(
                f"{self.root}/{folder}/{gone[0]}, with rows of {staged.source} that are not all "
                "sent, is gone: put the folder back"
            )

    def write_entry(self, entry: StagedBatch) -> None:
        """Write which rows a batch has, once the rows outlast a power cut."""
        self._write_step("staged", entry, [f"{_ROWS}/{entry.folder}"])
        self._sweeper.keep(entry.step, {_ROWS: {entry.folder}})

    def step_of(self, batch: NamedBatch) -> int | None:
        """Return the step that wrote a DataFrame; None if the name is new."""
        found = self.read_document(_name_document(batch), partial(load, WrittenName))
        return None if found is None else found.step

    def write_name(self, staged: StagedBatch) -> None:
        """Write in which step a DataFrame was written, before that step is done."""
        if isinstance(staged.source, NamedBatch) and self.step_of(staged.source) is None:
            written = WrittenName(staged.source.name, staged.step)
            self.write_document(_name_document(staged.source), dump(written))

    def write_done(self, done: BatchDone) -> None:
        """Mark a batch as done, forget one that is long over, and drop the rows."""
        super().write_done(done)
        self._sweeper.keep(done.step, {_ROWS: ()})


def _name_document(batch: NamedBatch) -> str:
    return f"names/{hashlib.sha256(batch.name.encode()).hexdigest()}"
