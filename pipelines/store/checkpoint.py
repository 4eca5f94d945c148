"""The folder in which a reorder job keeps its state, on any file system that Spark can write.

::

    format.json      whose folder this is: the job, its topics, the format's version
    outputs.json     the name and the Kafka cluster that the job's producer id belongs to
    partitions.json  how many partitions the output topic has, where it has gained some; a note
    owners/, heartbeats/    which process has it: see `store.ownership`
    spark/           Spark's own checkpoint; `spark-<name>` since the input was reset
    runs/<name>/     Parquet: the rows a batch staged, by output partition and event time; and
                     `files.json`: its files, written before a document names the run
    behind/<name>/   Parquet: those of them that were behind the frontier, judged
    repeats/<name>/  Parquet: places in the source of rows that the step drops as duplicates
    keys/<name>/     Parquet: one row a key, how far it has been released (a fold of runs)
    topology/<name>/ what a topology left of a step: outputs, events that wait, what bolts keep
    keyed/<name>/    what keyed bolts keep: changes of a step, or what is merged of several
    looks/<name>/    on a cluster, while the job starts: what driver and tasks find each other by
    replays/         Parquet: dead letters that somebody wants processed again
    staged/<step>    JSON: what the step staged; from then on Spark need not give its rows again
    frontier/<step>  JSON: what the step decided, written before anything of it goes out
    transactions.json   of a transactional topology, what its databases know the checkpoint by
    prepared/<step>-<attempt>    JSON: what its commit phase begins with
    processed/<step> JSON: what became of a step's events, written before their outputs go out
    plans/<step>     JSON: under which sequences its rows go out, written before any does
    done/<step>      JSON: what went out, written once all of it is acknowledged

What keeps it whole while other processes are at work on it:

- Documents and names belong to one owner and one attempt (`store.owned_folder`).
- They are written in one order, and a step that is not done is finished (`store.step_folder`).
- A folder is deleted once a newer document stands that no longer names it (`store.sweeper`).
- Before a document is written, all that it rests on outlasts a power cut (`store.durable`).
"""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace

from sequitur.base.stored import dump, load
from sequitur.consumer.reorder.sorted_run import Run
from sequitur.consumer.reorder.step_log import NOTHING_DONE, StagedStep, StepDone, StepEntry
from sequitur.errors import CheckpointError
from sequitur.pipelines.store.documents import BEGIN_ANEW
from sequitur.pipelines.store.job_identity import begun_with, check_identity
from sequitur.pipelines.store.owned_folder import as_text, step_name
from sequitur.pipelines.store.part_files import forget
from sequitur.pipelines.store.run_files import RunFiles, files_document_name, files_of
from sequitur.pipelines.store.spark_part import SparkPart, files_around
from sequitur.pipelines.store.step_folder import KEPT_STEPS, StepFolder
from sequitur.pipelines.store.storage import OVERSIZED_FOLDER, sync

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from sequitur.consumer.reorder.key_state import Fold
    from sequitur.consumer.reorder.step_log import Step
    from sequitur.pipelines.store.job_identity import JobIdentity
    from sequitur.pipelines.store.storage import Location, SparkFolder, Storage


_TRANSACTIONS: Final = "transactions.json"
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
PARTITIONS_DOCUMENT: Final = "partitions.json"
_Found = TypeVar("_Found")


class Checkpoint(StepFolder[StepEntry, StepDone]):
    """The folder, and what stands in it.

    What reads a document raises `CheckpointError` if it cannot be read. What writes one that
    decides something raises `OwnershipError` if it is there already, or another process has taken
    the folder over.
    """

    _LOG = "frontier"
    _BY_STEP = ("staged", "frontier", "plans", "done")
    _PUT_BACK = f"Put frontier/, staged/ and done/ back as they were together, or {BEGIN_ANEW}"

    def __init__(self, storage: Storage, spark_folder: SparkFolder | None = None) -> None:
        super().__init__(storage, spark_folder)
        self.spark = SparkPart(spark_folder or storage)
        self._listed: set[str] = set()
        self._kept: dict[str, set[str]] = {}
        self._synced: set[str] = set()  # folders of keys
        self._paths: dict[str, tuple[Location, ...]] = {}

    def files(self, *held: Run | Fold) -> tuple[Location, ...]:
        return tuple(path for one in held for path in self._paths_of(one))

    def _paths_of(self, one: Run | Fold) -> tuple[Location, ...]:
        folder = _folder(one)
        found = self._paths.get(folder)
        # Runs that are read from a document may have no file names yet.
        if found is None or len(found) != len(one.files):
            location = self.location(folder)
            found = self._paths[folder] = tuple(location / name for name in one.files)
        return found

    def check_whole(self, entry: StepEntry, *, is_done: bool) -> None:
        """Check that all files are there that a step, or later ones once it is done, will read."""
        folds = () if entry.keys is None else entry.keys.folds
        self.check_files(*(entry.kept_runs if is_done else entry.runs), *folds)

    def check_files(self, *held: Run | Fold) -> None:
        """Check that all files of runs and folds are there.

        Others may be there, too: those of tasks that were given up. Readers are told the names of
        the log, so these count for nothing, and a reader that misses one fails by itself: folders
        are listed at the start, and to say by name what a step failed of.
        """
        for one in held:
            folder, files = _folder(one), one.files
            if gone := self._gone(folder, files):
                raise CheckpointError(
                    f"{self.root}/{folder}/{gone[0]}, with {files[gone[0]]} rows that were read "
                    f"and are still needed, is gone. Files that are gone: {len(gone)} of "
                    f"{len(files)}. Put the folder back, or {BEGIN_ANEW}"
                )

    def claim(self, identity: JobIdentity) -> int:
        """Make the folder this job's, or check that it is; then take it over for this process.

        Return how many partitions the output topic had when the folder was new.
        """
        document = dump(identity)
        found = self._made_by(document)
        check_identity(self.root, found, document)
        folders = ["runs", "behind", "repeats", "keys", "staged", "frontier", "plans", "done"]
        if identity.topology is not None:
            folders += ["topology", "keyed", "prepared", "processed", "replays"]
        self._take(folders, ("staged", "frontier", "plans", "done", "prepared", "processed"))
        for topic in self._storage.names(OVERSIZED_FOLDER):
            self._storage.drop_unfinished(f"{OVERSIZED_FOLDER}/{topic}")
        return begun_with(found)

    def latest(self) -> tuple[StepEntry | None, StepDone]:
        """Return the newest step, and the newest step that is done."""
        entry, last = self._newest_steps(StepEntry, StepDone, NOTHING_DONE)
        if entry is None:
            return None, last
        step = entry.step
        if last.step < step - 1:
            # A step is logged once the step before it is done, with all counts so far.
            last = StepDone(step - 1, entry.before, stamped_ms=entry.logged_ms)
        # Runs of a done step that no other step needs may be gone.
        needed = {run.name for run in (entry.kept_runs if last.step == step else entry.runs)}
        runs = (self._with_files(one) if one.name in needed else one for one in entry.runs)
        return replace(entry, runs=tuple(runs)), last

    def staged(self, entry: StepEntry | None) -> tuple[StagedStep, ...]:
        """Return the staged steps that are not logged, in order."""
        newest = -1 if entry is None else entry.step
        names = [name for name in self._storage.names("staged") if name > step_name(newest)]
        found = []
        for step, name in enumerate(names, newest + 1):
            staged = self.read_document(f"staged/{step_name(step)}", partial(load, StagedStep))
            if staged is None or name != step_name(step):
                raise self._torn(
                    f"step {int(name)} is staged, but the last in frontier/ is {newest}"
                )
            if staged.run is not None:
                staged = replace(staged, run=self._with_files(staged.run))
            found.append(staged)
        return tuple(found)

    def _with_files(self, run: Run) -> Run:
        files = files_of(self._storage, run)
        if files is None and run.size_bytes:
            raise CheckpointError(
                f"{self.root}/{files_document_name(run)}, which names the files of {run.rows} rows "
                f"that were read and are still needed, is gone. Put the folder back, or "
                f"{BEGIN_ANEW}"
            )
        self._listed.add(run.name)
        return replace(run, files=files or {})

    def _list_files(self, *runs: Run, lasts: bool = True) -> None:
        """Write down which files runs have, unless that is done."""
        for run in runs:
            if run.name not in self._listed:
                text = as_text(dump(RunFiles(run.files)))
                self._storage.create(files_document_name(run), text, lasts=lasts)
                self._listed.add(run.name)

    def check_log(self, entry: Step | None, batch_id: int | None = None) -> None:
        """Check that the log is not gone where Spark has read on behind its first batch.

        Without it nothing is known of what was read and is held: to begin at Spark's next batch
        would pass that over without a word.
        """
        if entry is not None:
            return
        found = f"batch {batch_id}" if batch_id else self.spark.traces()
        if found is not None:
            raise CheckpointError(
                f"{self.root}: the query has got to {found}, but frontier/ has no step: the log of "
                f"read and held rows is gone. {self._PUT_BACK}"
            )

    def write_staged(self, staged: StagedStep, *, is_run_synced: bool = True) -> None:
        """Log what a step staged; from then on Spark need not give its rows again.

        Tasks have synced the files that they wrote. What the driver has staged by itself is synced
        here, all of it at once.
        """
        # Staged rows count as read: Spark must not plan them anew.
        after = [] if staged.batch_id < 0 else files_around(staged.source, staged.batch_id)
        run = staged.run
        if run is not None:
            self._list_files(run, lasts=is_run_synced)
            if is_run_synced:
                sync(self.location("runs"))
            else:
                after.append(_folder(run))
        self._write_or_drop("staged", staged, after, () if run is None else (_folder(run),))

    def write_entry(self, entry: StepEntry) -> None:
        """Log what a step decided, and drop what no step from it on will read."""
        self._list_files(*entry.runs)
        own = [f"{folder}/{entry.name}" for folder in ("behind", "repeats", "keys")]
        self._write_or_drop("frontier", entry, own, own)
        keys = () if entry.keys is None else entry.keys.folds
        runs, folds = {run.name for run in entry.runs}, {fold.name for fold in keys}
        self._listed = {one for one in self._listed if one in runs or one > entry.name}
        self._paths = {
            folder: paths
            for folder, paths in self._paths.items()
            if (name := folder.rpartition("/")[2]) in runs or name in folds or name > entry.name
        }
        kept = {"runs": runs, "keys": folds, "behind": {entry.name}, "repeats": {entry.name}}
        for folder, names in self._kept.items():
            for name in names - kept[folder]:
                forget(self.location(f"{folder}/{name}"))
        self._kept = kept
        self._sweeper.keep(entry.step, kept)
        self._sweeper.keep_source(entry.source)

    def _write_or_drop(
        self, folder: str, document: Step, after: Sequence[str], attempt: Sequence[str]
    ) -> None:
        """Write a step's document; if the disk has no room, delete the folders of the attempt.

        After another error the document may stand all the same, as when NFS lost an answer. Then
        the folders go with a later step that does not need them.
        """
        try:
            self._write_step(folder, document, after)
        except OSError as error:
            is_full = isinstance(self.location(), Path) and error.errno in _NO_ROOM
            if is_full and not self._storage.exists(f"{folder}/{step_name(document.step)}"):
                for name in attempt:
                    self.drop_attempt(name)
            raise

    def tidy(self, entry: StepEntry) -> None:
        """Delete what no later step will read, once this step is done for good."""
        runs = {run.name for run in entry.kept_runs}
        self._sweeper.keep(entry.step, {"runs": runs, "behind": (), "repeats": ()})

    def note_partitions(self, *, used: int, there: int) -> None:
        """Note for `inspect` how many output partitions get rows, and how many there are."""
        self._storage.replace(PARTITIONS_DOCUMENT, as_text(dump(OutputPartitions(used, there))))

    def processed(self, step: int, meaning: Callable[[dict[str, Any]], _Found]) -> _Found | None:
        """Return what became of a step's events; None if it is not known yet."""
        return self.read_document(f"processed/{step_name(step)}", meaning)

    def write_processed(
        self,
        step: int,
        document: Mapping[str, Any],
        *,
        written: str | None,
        kept: Collection[str],
        keys: Collection[str] | None = None,
    ) -> None:
        """Write what became of a step's events, and delete what nothing needs any more.

        Args:
            step: The step.
            document: Its document.
            written: The folder in `topology/` that it has written; None for none.
            kept: The folders there that later steps need.
            keys: The folders in `keyed/` that later steps need; None without keyed bolts.
        """
        own = () if written is None else (written,)
        new = () if keys is None else [name for name in keys if name not in self._synced]
        after = [*(f"topology/{name}" for name in own), *(f"keyed/{name}" for name in new)]
        self.write_document(f"processed/{step_name(step)}", document, after)
        if keys is not None:
            self._synced = set(keys)
        self._sweeper.keep(step, {"topology": {*own, *kept}})
        if keys is not None:
            self._sweeper.keep(step, {"keyed": keys})
        if step >= KEPT_STEPS:
            self.sweep([f"processed/{step_name(step - KEPT_STEPS)}"])

    def transaction_epoch(self, *, is_new: bool, inherited: str = "") -> str:
        """Return the name by which databases know the checkpoint; it is drawn once."""
        found = self.read_document(_TRANSACTIONS, lambda document: str(document["epoch"]))
        if found is not None:
            return found
        if not is_new:
            raise CheckpointError(
                f"{self.root}/{_TRANSACTIONS} is gone, by which databases know the checkpoint. Put "
                f"the checkpoint back from a copy, whole, or {BEGIN_ANEW}"
            )
        epoch = inherited or uuid4().hex
        self.write_document(_TRANSACTIONS, {"epoch": epoch})
        return epoch

    def prepared(self, step: int, meaning: Callable[[dict[str, Any]], _Found]) -> _Found | None:
        """Return what the commit phase of a step begins with; None if nothing is prepared."""
        names = [one for one in self._storage.names("prepared") if one.startswith(step_name(step))]
        newest = max(names, key=_attempt_of, default=None)
        return None if newest is None else self.read_document(f"prepared/{newest}", meaning)

    def write_prepared(
        self,
        step: int,
        attempt: int,
        document: Mapping[str, Any],
        *,
        written: str,
        keys: Collection[str] = (),
    ) -> None:
        name = f"prepared/{_attempt_name(step, attempt)}"
        new = [f"keyed/{one}" for one in keys if one not in self._synced]
        self.write_document(name, document, [f"topology/{written}", *new])

    def drop_prepared(self, step: int, attempt: int | None = None) -> None:
        """Forget what was prepared: it was not committed, or the step is processed."""
        self.check_owner()
        if attempt is not None:
            self._storage.delete(f"prepared/{_attempt_name(step, attempt)}")
            return
        names = self._storage.names("prepared")
        over = [f"prepared/{name}" for name in names if name.partition("-")[0] <= step_name(step)]
        self._storage.delete_files(over)


class OutputPartitions(Struct, frozen=True, tag_field="format", tag=1):
    """What `partitions.json` says of the output topic."""

    TITLE: ClassVar = "output partitions"

    used: int  # how many get rows
    there: int

    @property
    def empty(self) -> int:
        return self.there - self.used


def _attempt_name(step: int, attempt: int) -> str:
    return f"{step_name(step)}-{attempt:015d}"


def _attempt_of(name: str) -> int:
    return int(name.rpartition("-")[2])


def _folder(held: Run | Fold) -> str:
    return f"{'runs' if isinstance(held, Run) else 'keys'}/{held.name}"
