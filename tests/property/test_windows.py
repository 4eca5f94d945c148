"""Windows put out what a plain computation gives, once, whatever fails and wherever batches end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.consumer.topology import (
    BasicBolt,
    ProcessSettings,
    TopologyBuilder,
    TopologyTester,
)
from sequitur.consumer.topology.api.builder import EVENT_FIELDS
from sequitur.consumer.topology.windows.one_line import KeyBy
from sequitur.windows import (
    Collect,
    Count,
    Max,
    Mean,
    Min,
    Sum,
    deduplicate,
    hopping,
    on_silence,
    rate_limit,
    session,
    sliding,
    tumbling,
)
from tests.support.window_topologies import results_of, run, usage, windows_topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sequitur.consumer.topology import KeyedBolt, Topology, Tuple

_END_MS = 10_000_000


@dataclass(frozen=True, slots=True)
class Case:
    """A stream of events, how it is cut, and what fails.

    Attributes:
        events: Key, event time, usage, and how many attempts fail, in event-time order.
        cuts: Behind which events a batch ends.
        retries: For each batch whether all is tried again behind it.
        every: One of so many results fails in its reader.
        by_field: Whether keys are a field of the value, and the events have other ones.
        drains: Whether a drain closes what is open at the end, and not the watermark.
    """

    events: tuple[tuple[str, int, float, int], ...]
    cuts: frozenset[int]
    retries: str
    every: int
    by_field: bool = False
    drains: bool = False

    def batches(self) -> list[list[Any]]:
        batches: list[list[Any]] = [[]]
        for at, (key, time_ms, used, fails) in enumerate(self.events):
            value = {"usage": used, "fails": fails, "user": key}
            batches[-1].append((str(at % 3) if self.by_field else key, value, time_ms))
            # A job's batches end between two times.
            if (
                at in self.cuts
                and self.events[at + 1 : at + 2]
                and self.events[at + 1][1] > time_ms
            ):
                batches.append([])
        return batches

    def results(self, bolt: KeyedBolt, *streams: str) -> dict[bytes, list[Any]]:
        keyed = KeyBy("user") if self.by_field else None
        return self.results_of(windows_topology(bolt, *streams, every=self.every, keyed=keyed))

    def results_of(self, topology: Topology) -> dict[bytes, list[Any]]:
        settings = ProcessSettings(max_attempts=0, retry_jitter=0, retry_factor=1)
        tester = TopologyTester(topology, settings)
        until_ms = 0 if self.drains else _END_MS
        run(tester, self.batches(), until_ms=until_ms, retries=self.retries)
        if self.drains:
            tester.drain()
        assert not tester.failed
        assert not tester.held
        assert not tester.dead_letters
        assert not tester.late_for_window
        return results_of(tester)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    steps = st.sampled_from((0, 1, 2, 3, 5, 9, 10, 11, 25))
    usages = st.one_of(
        st.integers(-5, 5), st.sampled_from((0.1, 0.7, 1e16, -1e16, 1e-9, 3.5, -1e200, 1e200))
    )
    time_ms, events = 1_000, []
    for _ in range(draw(st.integers(0, 30))):
        time_ms += draw(steps)
        fails = draw(st.sampled_from((0, 0, 0, 1, 2)))
        events.append((draw(st.sampled_from("ab")), time_ms, draw(usages), fails))
    cuts = draw(st.frozensets(st.integers(0, 30)))
    return Case(
        tuple(events), cuts, draw(st.text("r-", max_size=10)), draw(st.sampled_from((0, 2, 5)))
    )


def by_key(
    case: Case, of: Callable[[list[tuple[int, float]]], list[Any]]
) -> dict[bytes, list[Any]]:
    """Return what a reference gives for each key, without keys of which there is nothing."""
    keys: dict[bytes, list[tuple[int, float]]] = {}
    for key, time_ms, used, _ in case.events:
        keys.setdefault(key.encode(), []).append((time_ms, used))
    found = {key: of(several) for key, several in keys.items()}
    return {key: several for key, several in found.items() if several}


def aggregates() -> dict[str, Any]:
    return {
        "count": Count(usage), "sum": Sum(usage), "mean": Mean(usage), "min": Min(usage),
        "max": Max(usage), "all": Collect(usage),
    }  # fmt: skip


def aggregated(begin_ms: int, end_ms: int, used: list[float]) -> dict[str, Any]:
    exact = sum(map(Fraction, used), Fraction())
    whole = all(isinstance(one, int) for one in used)
    return {
        "begin_ms": begin_ms,
        "end_ms": end_ms,
        "count": len(used),
        "sum": int(exact) if whole else float(exact),
        "mean": float(exact / len(used)),
        "min": min(used),
        "max": max(used),
        "all": used,
    }


def check(
    case: Case,
    bolt: KeyedBolt,
    reference: Callable[[list[tuple[int, float]]], list[Any]],
    *,
    by_field: bool,
    drains: bool,
) -> None:
    """Check results. By a field, events come to a key in the order in which they first succeed."""
    found = replace(case, by_field=by_field, drains=drains).results(bolt)
    expected = by_key(case, reference)
    if by_field:
        found, expected = in_any_order(found), in_any_order(expected)
    assert found == expected


def in_any_order(results: dict[bytes, list[Any]]) -> dict[bytes, list[Any]]:
    return {
        key: [one | {"all": sorted(one["all"])} for one in several]
        for key, several in results.items()
    }


@pytest.mark.promise("windows-undone", "keyed-by-field")
@pytest.mark.parametrize("by_field", [False, True])
@pytest.mark.parametrize(("size", "advance"), [(10, 10), (25, 10), (7, 3)])
@given(case=cases(), drains=st.booleans())
def test_tumbling_and_hopping(
    size: int, advance: int, by_field: bool, drains: bool, case: Case
) -> None:
    def reference(events: list[tuple[int, float]]) -> list[Any]:
        found = []
        first, last = events[0][0] - size, events[-1][0]
        for begin in range(first - first % advance, last + 1, advance):
            used = [one for time_ms, one in events if begin <= time_ms < begin + size]
            if used:
                found.append(aggregated(begin, begin + size, used))
        return found

    lengths = f"{size} ms", f"{advance} ms"
    bolt = hopping(*lengths, late="drop", **aggregates())
    if size == advance:
        bolt = tumbling(lengths[0], late="drop", **aggregates())
    check(case, bolt, reference, by_field=by_field, drains=drains)


@pytest.mark.promise("windows-undone")
@given(case=cases())
def test_sliding(case: Case) -> None:
    def reference(events: list[tuple[int, float]]) -> list[Any]:
        return [
            aggregated(
                time_ms - 10,
                time_ms,
                [used for before_ms, used in events[: at + 1] if before_ms > time_ms - 10],
            )
            for at, (time_ms, _) in enumerate(events)
        ]

    bolt = sliding("10 ms", late="drop", **aggregates())
    assert case.results(bolt) == by_key(case, reference)


@pytest.mark.promise("windows-undone", "keyed-by-field")
@pytest.mark.parametrize("by_field", [False, True])
@given(case=cases(), drains=st.booleans())
def test_sessions(by_field: bool, drains: bool, case: Case) -> None:
    def reference(events: list[tuple[int, float]]) -> list[Any]:
        sessions: list[list[tuple[int, float]]] = []
        for one in events:
            if sessions and one[0] < sessions[-1][-1][0] + 10:
                sessions[-1].append(one)
            else:
                sessions.append([one])
        return [
            aggregated(several[0][0], several[-1][0] + 10, [used for _, used in several])
            for several in sessions
        ]

    bolt = session("10 ms", late="drop", **aggregates())
    check(case, bolt, reference, by_field=by_field, drains=drains)


class Counted(BasicBolt):
    """Makes events of windows, of one key for all, and fails the first attempts at some."""

    fields = EVENT_FIELDS

    def __init__(self, every: int) -> None:
        self.every = every

    def process(self, tuple: Tuple, _: Any) -> Any:  # noqa: A002
        if (
            self.every
            and tuple.attempt < 3
            and crc32(repr(tuple.values).encode()) % self.every == 0
        ):
            raise ValueError("a window fails")
        value = b'{"n":%d}' % tuple["n"]
        yield b"all", value, (), tuple.event_time_ms, "windows", 0, 0, tuple.event_time_ms


@pytest.mark.promise("windows-undone", "keyed-by-field")
@pytest.mark.parametrize("by_field", [False, True])
@given(case=cases(), drains=st.booleans(), allow_late=st.sampled_from((0, 7)))
def test_windows_of_windows(by_field: bool, drains: bool, allow_late: int, case: Case) -> None:
    """Of all keys: none is closed before the windows that it is of."""
    builder = TopologyBuilder("totals")
    builder.set_spout("events")
    builder.set_bolt("keyed", KeyBy("user")).local_grouping("events")
    own = tumbling("10 ms", allow_late=f"{allow_late} ms", late="drop", n=Count(usage))
    builder.set_bolt("own", own).fields_grouping("keyed" if by_field else "events", "key")
    builder.set_bolt("counted", Counted(case.every)).local_grouping("own")
    total = tumbling("50 ms", late="drop", n=Sum("n"))
    builder.set_bolt("total", total).fields_grouping("counted", "key")
    builder.set_output("results", "results", key="key", value=None).local_grouping("total")
    found = replace(case, by_field=by_field, drains=drains).results_of(builder.build())
    counts = Counter(time_ms // 50 * 50 for _, time_ms, *_ in case.events)
    expected = [{"begin_ms": one, "end_ms": one + 50, "n": counts[one]} for one in sorted(counts)]
    assert found == ({b"all": expected} if expected else {})


@pytest.mark.promise("windows-undone")
@given(case=cases())
def test_silence(case: Case) -> None:
    def reference(events: list[tuple[int, float]]) -> list[Any]:
        times_ms = [*(time_ms for time_ms, _ in events), _END_MS]
        return [{"last_ms": one} for one, following in pairwise(times_ms) if following >= one + 10]

    assert case.results(on_silence("10 ms")) == by_key(case, reference)


def passed(results: dict[bytes, list[Any]]) -> dict[bytes, list[Any]]:
    return {key: [one["event_time_ms"] for one in several] for key, several in results.items()}


@pytest.mark.promise("windows-undone")
@given(case=cases())
def test_deduplication(case: Case) -> None:
    def reference(events: list[tuple[int, float]]) -> Iterator[int]:
        before: dict[float, int] = {}
        for time_ms, used in events:
            if used not in before or before[used] + 10 <= time_ms:
                before[used] = time_ms
                yield time_ms

    found = passed(case.results(deduplicate("10 ms", of=usage)))
    assert found == by_key(case, lambda events: list(reference(events)))


@pytest.mark.promise("windows-undone")
@given(case=cases())
def test_rates(case: Case) -> None:
    def reference(events: list[tuple[int, float]]) -> list[int]:
        let: list[int] = []
        for time_ms, _ in events:
            if sum(one > time_ms - 10 for one in let) < 2:
                let.append(time_ms)
        return let

    found = passed(case.results(rate_limit(2, "10 ms", over="drop")))
    assert found == by_key(case, reference)
