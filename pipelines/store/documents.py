"""The one reader of a checkpoint's JSON documents: what is damaged is told by name."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from sequitur.errors import CheckpointError, StateFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sequitur.consumer.reorder.sorted_run import Run
    from sequitur.pipelines.store.storage import SparkFolder, Storage


_Found = TypeVar("_Found")
BEGIN_ANEW: Final = (
    "give the job a checkpoint, an app and an output topic of its own: it then reads its input "
    "again"
)
DRAIN_FIRST: Final = (
    "let the version that wrote it release the rows it holds (--available-now --drain), then give "
    "the job a checkpoint and an app of its own"
)


def read_document(
    storage: SparkFolder, name: str, meaning: Callable[[dict[str, Any]], _Found]
) -> _Found | None:
    """Return what a document says; None when there is none."""
    if not storage.exists(name):
        return None
    where = f"{storage.root}/{name}"
    try:
        found = json.loads(storage.read(name))
        if not isinstance(found, dict):
            raise TypeError(f"not a JSON object but {type(found).__name__}")  # noqa: TRY301
        return meaning(found)
    except KeyError as error:
        raise _damaged(where, f"it has no {error}") from error
    except StateFormatError as error:
        if not found.keys() & {"format", "prepared_format"}:
            raise _damaged(where, error) from error
        raise CheckpointError(f"{where} cannot be read: {error}: {DRAIN_FIRST}") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise _damaged(where, error) from error


def check_format(document: Mapping[str, Any], known: int) -> None:
    """Check that a document has the format that this version reads."""
    if document.get("format") != known:
        raise ValueError(f"it has format {document.get('format')}, this version reads {known}")


def _damaged(where: str, why: object) -> CheckpointError:
    return CheckpointError(
        f"{where} cannot be read: {why}. Put the checkpoint back from a copy, whole, or "
        f"{BEGIN_ANEW}"
    )


# Which files a run has, and the rows of each: said once, beside them.
#
# The log names the runs that hold rows in each of its entries; a thousand of them, of a thousand
# tasks, have a million files. Their names would be all that an entry consists of. So they stand in
# a document of the run's own, `runs/<name>/files.json`, which is there before any other names the
# run.


_FORMAT: Final = 1


def files_document_name(run: Run) -> str:
    """Return where it stands."""
    return f"runs/{run.name}/files.json"


def files_document(run: Run) -> dict[str, Any]:
    """Return what it says."""
    return {"format": _FORMAT, "files": dict(run.files)}


def files_of(storage: SparkFolder, run: Run) -> Mapping[str, int] | None:
    """Return the files of a run, by name, and the rows of each; None where nothing says so."""
    return read_document(storage, files_document_name(run), _files)


def _files(document: Mapping[str, Any]) -> dict[str, int]:
    check_format(document, _FORMAT)
    return {str(name): int(rows) for name, rows in document["files"].items()}


# How many partitions of an output topic that has gained some get rows: a note for `inspect`.


def partitions_document(used: int, there: int) -> dict[str, Any]:
    """Return the note: how many get rows, and how many there are."""
    return {"format": _FORMAT, "used": used, "there": there}


def empty_partitions(document: Mapping[str, Any]) -> int:
    """Return how many stay empty, as the note says."""
    check_format(document, _FORMAT)
    return int(document["there"]) - int(document["used"])


# What a job without its checkpoint takes over from the one that had it.


@dataclass(frozen=True, slots=True)
class FormerJob:
    """A job whose checkpoint is gone, as its subscription knows it."""

    # the newest owner generation of its drivers: later lives have larger attempt ids
    lives: int = 0
    transaction: int = 0  # its last transaction id; 0 before the first
    transactions: str = ""  # what the databases of its states know it by; empty without one

    def to_document(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read `to_document` back."""
        return cls(**document)


NO_FORMER_JOB: Final = FormerJob()


# Where a job's state is once its subscription was reset: each epoch has a folder of its own.
#
# A reset begins everything anew: what is held, what is known of keys, Spark's part. What was before
# stays where it is, for whoever wants to look, and nothing of it is read.


_FOLDER: Final = "epochs"
_WIDTH: Final = 6


def folder_of_epoch(root: str, epoch: int) -> str:
    """Return the folder of an epoch; that of the first is the checkpoint's own."""
    return root if epoch == 0 else f"{root.rstrip('/')}/{_FOLDER}/{epoch:0{_WIDTH}d}"


def newest_epoch(storage: Storage) -> int:
    """Return the newest epoch that has a folder in a checkpoint."""
    names = storage.names(_FOLDER)
    return max((int(name) for name in names if name.isdecimal()), default=0)


def check_epoch(storage: Storage, epoch: int, subscription: str | None) -> None:
    """Check that a checkpoint is of no later epoch: a reset left its older folders."""
    if (newest := newest_epoch(storage)) <= epoch:
        return
    if subscription is None:
        raise CheckpointError(
            f"{storage.root} is the checkpoint of a subscription that was reset: without the "
            "subscription, the job would resume where it was before the reset. Set "
            "`subscription` again, or give the job a checkpoint of its own"
        )
    raise CheckpointError(
        f"{storage.root} is of epoch {newest}, and subscription {subscription!r} of epoch "
        f"{epoch}: the stored cursors of the subscription are gone. Delete {storage.root}: "
        "without a checkpoint, the job resumes from the subscription's cursors"
    )
