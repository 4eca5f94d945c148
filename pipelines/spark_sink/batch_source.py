"""Which batch a sink is given, and whether its turn has come.

Pure: other modules ask Spark, and read the checkpoint.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from sequitur.errors import WrongBatchError


class StreamBatch(Struct, frozen=True, tag=True, rename={"batch_id": "batch"}):
    query: str  # the query's id, which its own checkpoint keeps
    batch_id: int
    # names what Spark has planned to read in it; None where that is not known
    plan: str | None = None

    def __str__(self) -> str:
        return f"batch {self.batch_id}"


class NamedBatch(Struct, frozen=True, tag=True):
    """A DataFrame that is written once, under a name."""

    name: str

    def __str__(self) -> str:
        return f"batch {self.name!r}"


BatchSource: TypeAlias = StreamBatch | NamedBatch


def is_repeated(
    root: str, batch: BatchSource, newest: BatchSource | None, first_batch: int
) -> bool:
    """Tell whether a batch is the newest one that was staged, or follows it."""
    if newest is not None and type(newest) is not type(batch):
        has = "a stream's batches" if isinstance(newest, StreamBatch) else "DataFrames with names"
        raise WrongBatchError(
            f"{root} has {has}: a stream, and DataFrames with names, have a checkpoint each"
        )
    if isinstance(batch, NamedBatch):
        return batch == newest
    if newest is None:
        if batch.batch_id != first_batch:
            raise WrongBatchError(
                f"{root} is empty, and the stream has got to batch {batch.batch_id}: what it "
                "wrote before is not known here. Put the sink's checkpoint back. If it is "
                f"new, and earlier batches went elsewhere, use first_batch={batch.batch_id}"
            )
        return False
    assert isinstance(newest, StreamBatch)
    if batch.query != newest.query:
        raise WrongBatchError(
            f"{root} belongs to the query with the id {newest.query}, and this one is "
            f"{batch.query}: with a new checkpoint of Spark's (checkpointLocation) batches count "
            f"from 0 again, and would look written up to batch {newest.batch_id}. Put Spark's "
            "checkpoint back, or give the sink a new one, too"
        )
    if batch.batch_id == newest.batch_id:
        if None not in {batch.plan, newest.plan} and batch.plan != newest.plan:
            raise WrongBatchError(
                f"{root}: batch {batch.batch_id} was staged from other offsets than Spark has "
                "planned now: is its checkpoint (checkpointLocation) an older copy? Rows "
                "read since then would be left out. Put the newest copy back"
            )
        return True
    if batch.batch_id != newest.batch_id + 1:
        raise WrongBatchError(
            f"{root} has got to batch {newest.batch_id}, and this is batch {batch.batch_id}, "
            "neither the same one nor the next. Are Spark's checkpoint (checkpointLocation) "
            "and the sink's of one time? Put the newest copies of both back"
        )
    return False
