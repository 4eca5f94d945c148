"""What the sink's documents say of a batch: in which files its rows are, and how many are out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar, Final, TypeAlias

from msgspec import Struct

from sequitur.base.stored import dump
from sequitur.pipelines.spark_sink.batch_source import BatchSource, NamedBatch, StreamBatch

RowGroup: TypeAlias = tuple[tuple[int, int], ...]
"""Of a row group: each partition that has rows in it, in order, and how many."""

_BATCH_FORMAT: Final = 1
_KIND: Final = "type"
"""The tag of sources: a stored one has none, for its fields say what it is."""


class StagedFile(Struct, frozen=True):
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


class StagedBatch(Struct, frozen=True, tag_field="format", tag=_BATCH_FORMAT):
    """A document in `staged/`: once it is there, Spark's rows of the batch do not count."""

    TITLE: ClassVar = "staged batch"

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

    def to_stored(self) -> dict[str, Any]:
        source = dump(self.source)
        del source[_KIND]
        return {
            "format": _BATCH_FORMAT,
            **{name: getattr(self, name) for name in self.__struct_fields__},
            "source": source,
            "files": {file.name: (file.size_bytes, file.groups) for file in self.files},
        }

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any]) -> dict[str, Any]:
        files = [
            {"name": name, "size_bytes": size_bytes, "groups": groups}
            for name, (size_bytes, groups) in stored["files"].items()
        ]
        source = stored["source"]
        kind: type[Struct] = NamedBatch if "name" in source else StreamBatch
        fields = {name: source[name] for name in kind.__struct_encode_fields__}
        return {**stored, "source": {_KIND: kind.__name__, **fields}, "files": files}


class BatchDone(Struct, frozen=True, tag_field="format", tag=_BATCH_FORMAT):
    """A document in `done/`."""

    TITLE: ClassVar = "done batch"

    step: int
    rows: int  # how many rows it has written
    sent: Mapping[str, Any] | None  # how far sequences have got; None before the first rows


class WrittenName(Struct, frozen=True):
    """A document in `names/`."""

    TITLE: ClassVar = "name of a batch"

    name: str
    step: int  # the one that wrote it


NOTHING_DONE: Final = BatchDone(-1, 0, None)
