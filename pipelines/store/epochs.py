"""Where a job's state is once its subscription was reset: each epoch has a folder of its own.

A reset begins everything anew: what is held, what is known of keys, Spark's part. What was before
stays where it is, for people to look at, and nothing of it is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sequitur.errors import CheckpointError

if TYPE_CHECKING:
    from sequitur.pipelines.store.storage import Storage


_FOLDER: Final = "epochs"
_WIDTH: Final = 6


def folder_of_epoch(root: str, epoch: int) -> str:
    """Return the folder of an epoch; the folder of the first is the checkpoint itself."""
    return root if epoch == 0 else f"{root.rstrip('/')}/{_FOLDER}/{epoch:0{_WIDTH}d}"


def newest_epoch(storage: Storage) -> int:
    names = storage.names(_FOLDER)
    return max((int(name) for name in names if name.isdecimal()), default=0)


def check_epoch(storage: Storage, epoch: int, subscription: str | None) -> None:
    """Check that a checkpoint has no later epoch: a reset leaves the older folders."""
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
