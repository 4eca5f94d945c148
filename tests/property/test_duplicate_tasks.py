"""Duplicates that tasks find are those of a plain list, however rows lie in files and buckets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sequitur.consumer.reorder.reasons import LATE
from sequitur.pipelines.ordering.duplicates import IdsTask, RepeatsTask, buckets_for
from sequitur.pipelines.rows.columns import RUN_ARROW_SCHEMA, RowLimits
from sequitur.pipelines.rows.run_rows import Part, RunRows
from sequitur.pipelines.spark.partition_blocks import blocks_of
from sequitur.pipelines.store.part_files import PartFile
from tests.support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

    from sequitur.pipelines.ordering.duplicates import IdKind
    from sequitur.pipelines.store.storage import Location

_OUTPUTS = 2
_SMALL = RowLimits(slice_bytes=600, row_group_rows=3)
_SLOW = settings(
    max_examples=examples(0.6),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@dataclass(frozen=True)
class _Row:
    ids: tuple[bytes | None, ...]
    time_ms: int
    topic: str
    offset: int
    output: int
    is_late: bool = False

    @property
    def place(self) -> tuple[str, int, int]:
        return self.topic, 0, self.offset

    @property
    def order(self) -> tuple[int, bytes, int]:
        return self.time_ms, self.topic.encode(), self.offset

    @property
    def id(self) -> bytes | None:
        return self.ids[0] if self.ids else None

    @property
    def value(self) -> bytes | None:
        if self.id is None:
            return (None, b"{", b'{"meta":{}}', b'{"meta":{"id":null}}')[self.offset % 4]
        return b'{"meta": {"n": %d, "id": "%b"}}' % (self.offset, self.id)

    def as_arrow(self) -> dict[str, object]:
        headers = [{"key": "other", "value": b"1"}]
        headers += [{"key": "id", "value": one} for one in self.ids]  # type: ignore[dict-item]
        return {
            "topic": self.topic,
            "partition": 0,
            "offset": self.offset,
            "value": self.value,
            "headers": headers if self.ids or self.offset % 2 else None,
            "output_partition": self.output,
            "event_time_ms": self.time_ms,
            "reason": LATE if self.is_late else None,
        }


_IDS = st.lists(st.sampled_from([b"a", b"b", b"", b"c" * 9, None]), max_size=2).map(tuple)


@st.composite
def _rows(draw: st.DrawFn, *, first: int = 0, late: bool = False) -> list[_Row]:
    drawn = draw(
        st.lists(
            st.tuples(
                _IDS,
                st.integers(5, 8),
                st.sampled_from(["t", "\u00e9", "\U0001f600"]),
                st.integers(0, _OUTPUTS - 1),
            ),
            max_size=12,
        )
    )
    return [
        _Row(ids, time_ms, topic, first + number, output, late)
        for number, (ids, time_ms, topic, output) in enumerate(drawn)
    ]


def _file(folder: Path, name: str, rows: Sequence[_Row]) -> tuple[Location, ...]:
    (folder / name).mkdir()
    with PartFile(folder / name, RUN_ARROW_SCHEMA, _SMALL.row_group_rows) as file:
        # As in a run, a row group has rows of one output partition.
        for output in range(_OUTPUTS):
            own = [row.as_arrow() for row in rows if row.output == output]
            file.write(pa.Table.from_pylist(own, RUN_ARROW_SCHEMA))
    return () if file.location is None else (file.location,)


def _expected(new: Sequence[_Row], out: Sequence[_Row]) -> list[_Row]:
    seen = {row.id for row in out}
    repeats = []
    for row in sorted(new, key=lambda row: row.order):
        if row.id is not None and row.id in seen:
            repeats.append(row)
        seen.add(row.id)
    return repeats


@_SLOW
@given(
    on_time=_rows(),
    behind=_rows(first=100, late=True),
    out=_rows(first=200),
    more_buckets=st.integers(0, 5),
    where=st.sampled_from([("header", "id"), ("json", "meta.id")]),
)
def test_all_but_the_first_of_each_id_are_found(
    tmp_path_factory: pytest.TempPathFactory,
    on_time: list[_Row],
    behind: list[_Row],
    out: list[_Row],
    more_buckets: int,
    *,
    where: tuple[IdKind, str],
) -> None:
    """All of those whose id is out, else all but the first in the order of release."""
    root = tmp_path_factory.mktemp("runs")
    new = (
        Part(_file(root, "new", on_time)),
        Part(_file(root, "behind", behind), reasons=(LATE,)),
    )
    earlier = (Part(_file(root, "old", out), first_ms=6, reasons=()),)
    buckets = _OUTPUTS + more_buckets
    for name in ("ids", "found"):
        (root / name).mkdir()
    first = IdsTask(root / "ids", *where, new, earlier, buckets, _SMALL)
    written = [first(block) for block in blocks_of(_OUTPUTS, 1)]
    ids = tuple(root / "ids" / one.file for one in written if one.file is not None)
    second = RepeatsTask(root / "found", ids, buckets, _OUTPUTS, _SMALL)
    found = [second(number) for number in range(_OUTPUTS)]
    files = tuple(root / "found" / one.file for one in found if one.file is not None)
    columns = ("topic", "partition", "offset")
    places = [
        tuple(row.values())
        for piece in RunRows((Part(files, reasons=()),), None, columns).pieces()
        for row in piece.to_pylist()
    ]
    expected = _expected([*on_time, *behind], [row for row in out if row.time_ms >= 6])
    assert sorted(places) == sorted(row.place for row in expected)
    assert sum(one.rows for one in found) == len(expected)
    assert sum(one.late for one in found) == sum(row.is_late for row in expected)


def test_many_rows_are_put_into_more_buckets() -> None:
    """A task looks at one after the other, so that few rows are in memory at once."""
    assert buckets_for(0, 4) == buckets_for(1_000_000, 4) == 4
    assert buckets_for(100_000_000, 4) >= 380
