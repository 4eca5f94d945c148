"""What the sink's documents say of a batch: in which files its rows are, and how many are out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeAlias

from msgspec import Struct

from sequitur.pipelines.spark_sink.batch_source import BatchSource, source_of
from sequitur.pipelines.store.documents import check_format

if TYPE_CHECKING:
    from collections.abc import Sequence


RowGroup: TypeAlias = "tuple[tuple[int, int], ...]"
"""Of a row group: each partition that has rows in it, in order, and how many."""

_BATCH_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class StagedFile:
    name: str  # its name in the folder of its batch
    size_bytes: int
    # its row groups; a partition's rows are in their order in it
    groups: tuple[RowGroup, ...]

    @property
    def rows(self) -> Counter[int]:
        """Number of rows of each partition that has any."""
        found: Counter[int] = Counter()
        for group in self.groups:
            for partition, rows in group:
                found[partition] += rows
        return found


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A document in `staged/`: once it is there, Spark's rows of the batch do not count."""

    step: int  # its number in the sink's checkpoint
    source: BatchSource
    partitions: int  # the topic's number of partitions, by which its keys were placed
    folder: str  # name of the folder with its files
    # in the order in which a partition's rows follow each other
    files: tuple[StagedFile, ...]

    @property
    def rows(self) -> Mapping[int, int]:
        """Number of rows of each partition that has any."""
        found: Counter[int] = Counter()
        for file in self.files:
            found.update(file.rows)
        return found

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def to_document(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        return {
            "format": _BATCH_FORMAT,
            "step": self.step,
            "source": self.source.to_document(),
            "partitions": self.partitions,
            "folder": self.folder,
            "files": {file.name: [file.size_bytes, file.groups] for file in self.files},
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read `to_document` back."""
        check_format(document, _BATCH_FORMAT)
        return cls(
            step=document["step"],
            source=source_of(document["source"]),
            partitions=document["partitions"],
            folder=document["folder"],
            files=tuple(
                StagedFile(name, size_bytes, tuple(_group(one) for one in groups))
                for name, (size_bytes, groups) in document["files"].items()
            ),
        )


class BatchDone(Struct, frozen=True, tag_field="format", tag=_BATCH_FORMAT):
    """A document in `done/`."""

    TITLE: ClassVar = "done batch"

    step: int
    rows: int  # how many rows it has written
    sent: Mapping[str, Any] | None  # how far sequences have got; None before the first rows


NOTHING_DONE: Final = BatchDone(-1, 0, None)


def _group(pairs: Sequence[Sequence[int]]) -> RowGroup:
    return tuple((partition, rows) for partition, rows in pairs)
