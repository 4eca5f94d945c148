"""Windows and joins put out what a database computes from the same events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import duckdb
import pytest
from hypothesis import given

from sequitur.windows import (
    Count,
    Max,
    Min,
    hopping,
    join,
    join_table,
    session,
    sliding,
    tumbling,
)
from tests.property.test_windows import Case, cases
from tests.support.window_topologies import usage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.consumer.topology import Event, KeyedBolt

_AGGREGATES: Final = "count(*), min(used), max(used)"
_PANES: Final = "(select *, unnest(range(-9, t // 5 + 1)) as b from events)"
_PARTS: Final = (
    "(select *, sum(begins) over (partition by key order by number) as part from "
    "(select *, coalesce((t - lag(t) over (partition by key order by number) >= 10)::int, 1) "
    "as begins from events))"
)
_SIDES: Final = (
    "with l as (select * from events where used <= 0), r as (select * from events where used > 0) "
)
_NEAR: Final = "on l.key = r.key and r.t between l.t - 3 and l.t + 10"
_GIVEN: Final[dict[str, Any]] = {
    "late": "drop", "n": Count(usage), "low": Min(usage), "high": Max(usage)
}  # fmt: skip


def _side(event: Event) -> str:
    return "right" if usage(event) > 0 else "left"


def _join(kind: str) -> KeyedBolt:
    return join(_side, "10 ms", before="3 ms", kind=kind, late="drop")


_KINDS: Final = {
    "tumbling": (
        tumbling("10 ms", **_GIVEN),
        f"select key, t // 10 * 10 + 10 as e, {_AGGREGATES} from events group by key, e",
    ),
    "hopping": (
        hopping("12 ms", "5 ms", **_GIVEN),
        (
            f"select key, b * 5 + 12 as e, {_AGGREGATES} from {_PANES} "
            "where b * 5 <= t and t < b * 5 + 12 group by key, e"
        ),
    ),
    "sliding": (
        sliding("10 ms", **_GIVEN),
        (
            "select a.key, a.t, count(*), min(b.used), max(b.used) from events a join events b "
            "on a.key = b.key and b.t > a.t - 10 and b.number <= a.number "
            "group by a.key, a.t, a.number"
        ),
    ),
    "session": (
        session("10 ms", **_GIVEN),
        f"select key, max(t) + 10 as e, {_AGGREGATES} from {_PARTS} group by key, part",
    ),
    "inner": (_join("inner"), f"{_SIDES} select l.key, l.t, r.t from l join r {_NEAR}"),
    "left": (_join("left"), f"{_SIDES} select l.key, l.t, r.t from l left join r {_NEAR}"),
    "outer": (
        _join("outer"),
        f"{_SIDES} select coalesce(l.key, r.key), l.t, r.t from l full join r {_NEAR}",
    ),
    "table": (
        join_table(_side, late="drop"),
        (
            f"{_SIDES} select l.key, l.t, r.t from l asof left join r "
            "on l.key = r.key and l.number > r.number"
        ),
    ),
}


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        opened.execute("create table events (number int, key text, used double, t bigint)")
        yield opened


@pytest.mark.promise("windows-undone")
@pytest.mark.parametrize("kind", _KINDS)
@given(case=cases())
def test_a_database_computes_the_same(
    database: duckdb.DuckDBPyConnection, kind: str, case: Case
) -> None:
    bolt, query = _KINDS[kind]
    database.execute("truncate events")
    if case.events:
        keys, times_ms, used, _ = map(list, zip(*case.events, strict=True))
        rows = [range(len(keys)), keys, map(float, used), times_ms]
        columns = "unnest(?::int[]), unnest(?::text[]), unnest(?::double[]), unnest(?::bigint[])"
        database.execute(f"insert into events select {columns}", [list(one) for one in rows])
    names = ("end_ms", "n", "low", "high") if "n" in bolt.fields else ("left_ms", "right_ms")
    found = [
        (key.decode(), *(one[name] for name in names))
        for key, several in case.results(bolt).items()
        for one in several
    ]
    assert sorted(found, key=str) == sorted(_plain(database.execute(query).fetchall()), key=str)


def _plain(rows: list[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Yield rows with whole numbers as ints, as the events have them."""
    for row in rows:
        yield tuple(
            int(one) if isinstance(one, float) and one.is_integer() and abs(one) < 10 else one
            for one in row
        )
