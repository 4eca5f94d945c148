"""The folder an exactly-once sink keeps its state in.

::

    format.json      whose folder this is: the topic, and the sink's name in Kafka
    outputs.json     the name and the Kafka cluster that the sink's producer id belongs to
    owners/, heartbeats/    which process has it: see `store.ownership`
    rows/<name>/     Parquet: a batch's rows, by output partition and in order
    staged/<step>    JSON: which batch it is, and its files; from then on Spark's rows count no more
    plans/<step>     JSON: under which sequences its rows go out, written before any does
    names/<hash>     JSON: a DataFrame's name, and its step
    done/<step>      JSON: written once all of it is acknowledged
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from sequitur.errors import CheckpointError
from sequitur.pipelines.spark_sink.batch_source import NamedBatch
from sequitur.pipelines.spark_sink.staged_batch import NOTHING_DONE, BatchDone, StagedBatch
from sequitur.pipelines.store.owned_folder import FORMAT_DOCUMENT, OwnedFolder, step_name
from sequitur.pipelines.store.sweeper import Sweeper

if TYPE_CHECKING:
    from sequitur.pipelines.store.storage import Storage

_FORMAT: Final = 1
_KIND: Final = "sequitur-spark-sink"
_KEPT_STEPS: Final = 100
_DOCUMENTS: Final = ("staged", "plans", "names", "done")
_ROWS: Final = "rows"


class SinkFolder(OwnedFolder):
    """The folder, and what stands in it."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self._sweeper = Sweeper(storage, storage, self._ownership)

    def claim(self, topic: str, app: str | None) -> str:
        """Make the folder a topic's sink's, or check that it is; then take it over."""
        self._make(
            {
                "format": _FORMAT,
                "kind": _KIND,
                "topic": topic,
                "app": app or f"spark.{topic}.{uuid4().hex}",
            }
        )
        found = self.read_document(FORMAT_DOCUMENT, dict) or {}
        if found.get("kind") != _KIND:
            raise CheckpointError(f"{self.root} is not an exactly-once sink's")
        if found.get("format") != _FORMAT:
            raise CheckpointError(
                f"{self.root} has format {found.get('format')}; this version reads {_FORMAT}"
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
        """Return the newest batch that is staged, and the newest that is done."""
        # In the other order: a life before us may be at work yet, and mark one in between.
        done = self._newest("done", BatchDone.from_document) or NOTHING_DONE
        staged = self._newest("staged", StagedBatch.from_document)
        step = -1 if staged is None else staged.step
        if not step - 1 <= done.step <= step:
            raise CheckpointError(
                f"{self.root}: step {step} is the last in staged/, and step {done.step} the last "
                "in done/: part of it is gone. Put the folder back whole, from its newest copy"
            )
        return staged, done

    def drop_rows(self, name: str) -> None:
        """Delete what an attempt at staging has written that failed: no document names it.

        In an object store it goes once a batch is staged.
        """
        if isinstance(self.location(), Path):
            self._storage.delete(f"{_ROWS}/{name}")

    def check_rows(self, staged: StagedBatch) -> None:
        """Check that all files of a staged batch are there."""
        there = {*self._storage.names(f"{_ROWS}/{staged.folder}")}
        if gone := sorted({file.name for file in staged.files} - there):
            raise CheckpointError(
                f"{self.root}/{_ROWS}/{staged.folder}/{gone[0]}, with rows of {staged.source} that "
                "are not all sent, is gone: put the folder back"
            )

    def write_staged(self, staged: StagedBatch) -> None:
        """Write which rows a batch has, once these outlast a power cut."""
        self._storage.sync(f"{_ROWS}/{staged.folder}")
        self.write_document(f"staged/{step_name(staged.step)}", staged.to_document())
        self._sweeper.keep(staged.step, {_ROWS: {staged.folder}})

    def step_of(self, batch: NamedBatch) -> int | None:
        """Return the step in which a DataFrame was written; None of a name that is new."""
        found = self.read_document(_name_document(batch), lambda one: (one["name"], one["step"]))
        return None if found is None else int(found[1])

    def write_done(self, staged: StagedBatch, done: BatchDone) -> None:
        """Mark a batch as done, forget one that is long over, and let go of the rows."""
        if isinstance(staged.source, NamedBatch) and self.step_of(staged.source) is None:
            document = {"name": staged.source.name, "step": staged.step}
            self.write_document(_name_document(staged.source), document)
        self.write_document(f"done/{step_name(done.step)}", done.to_document())
        over = done.step - _KEPT_STEPS
        if over >= 0:
            for folder in ("staged", "plans", "done"):
                self._storage.delete(f"{folder}/{step_name(over)}")
        self._sweeper.keep(done.step, {_ROWS: ()})

    def close(self) -> None:
        """Let go of the folder, so that the next process need not wait."""
        self._sweeper.close()
        super().close()


def _name_document(batch: NamedBatch) -> str:
    return f"names/{hashlib.sha256(batch.name.encode()).hexdigest()}"
