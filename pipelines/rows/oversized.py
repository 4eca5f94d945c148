"""Records that a side topic does not hold whole: they are in files of the checkpoint.

Such a record is too large for the topic, or a bolt made it and its value is pickled, which only its
own job may read. The record in the topic names the file::

    oversized/<topic>/<partition>-<offset>-<sum>.parquet    one row, by where the event came from

A topic that is recreated gives places again. So the name has the checksum of the record's bytes.
The file is there before the record that names it goes out, and the job never deletes it.
"""

from __future__ import annotations

import hashlib
import io
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from sequitur.errors import CheckpointError
from sequitur.pipelines.rows.columns import RUN_ARROW_SCHEMA
from sequitur.pipelines.store.storage import OVERSIZED_FOLDER, open_file, write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sequitur.pipelines.store.storage import Location


MOST_ADDED: Final = 1 << 10
"""Bytes of the headers that are added to a late or bad row, at most."""
MOST_KEY_BYTES: Final = 4 << 10
"""A longer key stands in the file alone."""
_LONGEST_FOLDER: Final = 249
"""Characters of a folder's name: as many as a topic's may have."""
_SCHEMA: Final = RUN_ARROW_SCHEMA.append(pa.field("detail", pa.string()))


class Whole(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    detail: str | None  # the whole traceback of a dead letter
    place: tuple[str, int, int]  # where it came from: topic, partition, offset


def write_oversized(root: Location, row: Mapping[str, Any]) -> str:
    """Write a row into a file of its own; the file's path in the checkpoint.

    Once this returns the row survives a power cut. Written again, it takes the file's place.
    """
    found = zlib.crc32(row.get("value") or b"", zlib.crc32(row.get("key") or b""))
    place = f"{row['partition']}-{row['offset']}-{found:08x}"
    # No topic needs quoting; a tuple that a bolt made has its component in the topic's place.
    folder = quote(row["topic"], safe="").replace("%", "~")
    if len(folder) > _LONGEST_FOLDER:  # a bolt's name may be longer than a file name
        folder = "~" + hashlib.sha256(folder.encode()).hexdigest()
    name = f"{OVERSIZED_FOLDER}/{folder}/{place}.parquet"
    content = io.BytesIO()
    table = pa.Table.from_pylist([dict(row)], _SCHEMA)
    pq.write_table(table, content, compression="zstd", store_schema=False)
    write_whole(root / name, content.getvalue())
    return name


def read_oversized(root: Location, name: str) -> Whole:
    path = root / name
    if not name.startswith(f"{OVERSIZED_FOLDER}/") or ".." in name.split("/"):
        raise CheckpointError(f"{name!r} names no file of {OVERSIZED_FOLDER}/ in {root}")
    try:
        with open_file(path) as file:
            (row,) = pq.ParquetFile(file).read().to_pylist()
        headers = tuple((one["key"], one["value"]) for one in row["headers"] or ())
        place = row["topic"], row["partition"], row["offset"]
        return Whole(row["key"], row["value"], headers, row["detail"], place)
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise CheckpointError(f"{path}, which holds a record whole, cannot be read: {error}") from (
            error
        )
