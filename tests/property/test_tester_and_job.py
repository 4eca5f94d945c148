"""A tester gives what a job's tasks give: outputs, dead letters, order, retries, counts, state."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given as hypothesis_given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.topology_pairs import Pair, Shape, event, settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.consumer.topology import EventValues

_ONE_STAGE = Shape(
    {"work": "local", "second": "local", "join": "local", "totals": "local", "last": "local"}
)
_SEVERAL = Shape(
    {"work": "shuffle", "second": "fields", "join": "global", "totals": "fields", "last": "fields"},
    {"second": 2, "totals": 3, "last": 2},
)
_SHAPES = pytest.mark.parametrize("shape", [_ONE_STAGE, _SEVERAL], ids=["one stage", "several"])
_PARTITIONS = pytest.mark.parametrize("partitions", [1, 3])


def is_known(values: EventValues) -> bool:
    return b"unknown" not in (values.value or b"")


def _pair(tmp_path: Path, shape: Shape, partitions: int, **given: Any) -> Pair:
    return Pair(shape, settings(**given), partitions, tmp_path)


def _events(partitions: int, *values: bytes, first: int = 1) -> list[EventValues]:
    """Events of three keys, and some without."""
    keys = itertools.cycle([b"a", b"b", None, b"a", b"c"])
    return [
        event(number, key, value, partitions)
        for number, (value, key) in enumerate(zip(values, keys, strict=False), first)
    ]


@pytest.mark.promise("process-topology-run-tester")
@_SHAPES
@_PARTITIONS
def test_what_goes_right(tmp_path: Path, shape: Shape, partitions: int) -> None:
    """Over several batches, with state, ticks and what is emitted at the end of a batch."""
    pair = _pair(tmp_path, shape, partitions)
    for number in range(4):
        given = [b"good 0 before"] * (7 - 2 * number)
        pair.step(_events(partitions, *given, first=1 + 10 * number))
        pair.tester.advance(0.7)
    assert len(pair.tester.acked) == 16
    told = [value for _, value in pair.tester.records("totals-out")]
    assert any((value or b"").startswith(b"tick") for value in told)
    assert any(b"+" in (value or b"") for _, value in pair.tester.records("join-out"))


@pytest.mark.promise("process-topology-run-tester")
@_SHAPES
@pytest.mark.parametrize("how", ["fail {} before", "forget {} after", "raise {} below"])
def test_what_fails(tmp_path: Path, shape: Shape, how: str) -> None:
    """Once, so that it is tried again, or each time: then it is a dead letter; others are held."""
    pair = _pair(tmp_path, shape, 2)
    once, each, good = how.format(1).encode(), how.format(9).encode(), b"good 0 before"
    pair.step(_events(2, good, once, good, each, good))
    pair.step(_events(2, good, each, once, good, good, first=10))
    assert pair.tester.held
    pair.to_the_end()
    assert (len(pair.tester.acked), pair.dead_events) == (8, 2)
    assert pair.tester.made_acked > 0


@pytest.mark.promise("process-topology-run-tester")
@_PARTITIONS
@pytest.mark.parametrize("how", ["dump", "load"])
def test_what_cannot_be_pickled(tmp_path: Path, partitions: int, how: str) -> None:
    """It fails on its way to a later stage, and nowhere else."""
    bad, good = f"{how} 9 after".encode(), b"good 0 before"
    for name, shape in {"one": _ONE_STAGE, "several": _SEVERAL}.items():
        pair = _pair(tmp_path / name, shape, partitions)
        pair.step(_events(partitions, good, bad, good, good))
        pair.to_the_end()
        assert pair.dead_events == (name == "several")


@pytest.mark.promise("process-topology-run-tester")
@_SHAPES
@pytest.mark.parametrize("given", [
    {"ackers": 0}, {"ackers": 5}, {"outputs": "immediate"}, {"max_spout_pending": 2},
    {"max_spout_pending": 7}, {"ordering": "none"}, {"max_attempts": 1},
], ids=str)  # fmt: skip
def test_every_setting(tmp_path: Path, shape: Shape, given: dict[str, Any]) -> None:
    """Whatever a job is told, a tester is."""
    pair = _pair(tmp_path, shape, 2, **given)
    values = [b"good 0 before", b"raise 1 below", b"fail 9 after", b"unanchored 0 before"]
    pair.step(_events(2, *values * 2))
    pair.step(_events(2, *values, first=20))
    pair.to_the_end()


_VALUES = st.builds(
    lambda how, times, where: f"{how} {times} {where}".encode(),
    st.sampled_from(["good", "raise", "fail", "forget", "dump", "load", "unanchored", "unknown"]),
    st.sampled_from([0, 1, 2, 9]),
    st.sampled_from(["before", "after", "below"]),
)
_GROUPINGS = st.sampled_from(["local", "shuffle", "fields", "global", "all", "local_or_shuffle"])
_TASKS = st.sampled_from([None, None, 1, 2, 3])
_BOLTS = ("work", "second", "join", "totals", "last")
_BATCHES = st.lists(
    st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", None]), _VALUES), max_size=6),
    min_size=1,
    max_size=3,
)


def test_records_of_no_event_keep_the_order_of_the_waves(tmp_path: Path) -> None:
    """Ticks and ends of batches stand in one place; each wave of a step has some of its own."""
    shape = Shape(
        dict.fromkeys(("work", "second", "join", "totals"), "local"), {"join": 1}, is_known
    )
    pair = _pair(tmp_path, shape, 2, max_spout_pending=1)
    pair.step([])
    pair.tester.advance(2.0)
    pair.step(_events(2, b"good 0 before"))
    pair.to_the_end()


@pytest.mark.promise("process-topology-run-tester")
@hypothesis_settings(max_examples=examples(0.2))
@hypothesis_given(
    groupings=st.fixed_dictionaries(dict.fromkeys(_BOLTS, _GROUPINGS)),
    tasks=st.fixed_dictionaries(dict.fromkeys(_BOLTS, _TASKS)),
    left_out=st.sampled_from([(), ("last",), ("join",), ("second", "totals", "last")]),
    partitions=st.sampled_from([1, 2, 3]),
    given=st.fixed_dictionaries({
        "max_attempts": st.sampled_from([1, 2, 3]),
        "ordering": st.sampled_from(["key", "key", "none"]),
        "ackers": st.sampled_from([None, None, 1, 0]),
        "max_spout_pending": st.sampled_from([None, None, 1, 4]),
        "outputs": st.sampled_from(["finished", "finished", "immediate"]),
    }),
    batches=_BATCHES,
    waits_s=st.lists(st.sampled_from([0.0, 0.1, 0.3, 2.0]), min_size=3, max_size=3),
)  # fmt: skip
def test_any_topology(  # noqa: PLR0917 - Hypothesis names them all
    groupings: dict[str, str],
    tasks: dict[str, int | None],
    left_out: Sequence[str],
    partitions: int,
    given: dict[str, Any],
    batches: Sequence[Sequence[tuple[bytes | None, bytes]]],
    waits_s: Sequence[float],
) -> None:
    """Whatever its groupings, tasks and settings, and whatever goes wrong in it."""
    kept = {name: grouping for name, grouping in groupings.items() if name not in left_out}
    numbers = itertools.count(1)
    with tempfile.TemporaryDirectory(prefix="pair-") as folder:
        shape = Shape(kept, tasks, is_known)
        pair = Pair(shape, settings(**given), partitions, Path(folder))
        for batch, wait_s in zip(batches, waits_s, strict=False):
            pair.step([event(next(numbers), key, value, partitions) for key, value in batch])
            pair.tester.advance(wait_s)
        pair.to_the_end()
