"""Joins put out what nested loops give, once, whatever fails and however late events are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.windows import join, join_table
from tests.support.window_topologies import OneKey, results_of, run, windows_tester

if TYPE_CHECKING:
    from sequitur.consumer.topology import Event, KeyedBolt

_END_MS = 10_000_000


@dataclass(frozen=True, slots=True)
class Case:
    """A stream of two kinds of events.

    Attributes:
        batches: Side, number, event time and how many attempts fail, by batch. In a batch they are
            in event-time order.
        retries: For each batch whether all is tried again behind it.
        every: One of so many results fails in its reader.
    """

    batches: tuple[tuple[tuple[str, int, int, int], ...], ...]
    retries: str = ""
    every: int = 0

    def results(
        self, bolt: KeyedBolt, *, by_field: bool = False
    ) -> tuple[list[tuple[Any, ...]], list[int]]:
        """Return the results, and the numbers of late events.

        Args:
            bolt: The bolt.
            by_field: Whether events have other keys than the one that they are joined by.
        """
        keyed = OneKey() if by_field else None
        tester = windows_tester(bolt, "late", every=self.every, keyed=keyed)
        batches = [
            [
                {
                    "key": str(number % 3) if by_field else "a",
                    "value": str(number) if number % 5 else None,
                    "event_time_ms": time_ms,
                    "headers": (("side", side.encode()), ("fails", b"%d" % fails)),
                }
                for side, number, time_ms, fails in several
            ]
            for several in self.batches
        ]
        run(tester, batches, until_ms=_END_MS, retries=self.retries)
        assert not tester.failed
        assert not tester.held
        assert not tester.dead_letters
        found = results_of(tester).get(b"a", [])
        late = [record.root.event[3] for record in tester.outputs["late"]]
        return [tuple(one.values()) for one in found], late

    def taken(self, allow_late: int) -> tuple[list[tuple[str, Any, int]], list[int]]:
        """Return the events that are not late, with their values, and the times of the others."""
        taken, late, reached_ms = [], [], None
        for several in self.batches:
            for side, number, time_ms, _ in several:
                if reached_ms is not None and time_ms + allow_late <= reached_ms:
                    late.append(time_ms)
                else:
                    taken.append((side, str(number) if number % 5 else None, time_ms))
            known = [one for one in (reached_ms, *(one[2] for one in several)) if one is not None]
            reached_ms = max(known, default=None)
        return taken, late


@st.composite
def cases(draw: st.DrawFn, *, least_ms: int) -> Case:
    """Draw events that are `-least_ms` older than the watermark at most; none fails if some are."""
    sides = st.sampled_from(("left", "right"))
    offsets = st.lists(st.integers(least_ms, 12), max_size=6)
    batches, reached_ms, number = [], 1_000, 0
    for _ in range(draw(st.integers(0, 6))):
        several = []
        for offset_ms in sorted(draw(offsets)):
            number += 1
            fails = draw(st.sampled_from((0, 0, 0, 1, 2))) if least_ms > 0 else 0
            several.append((draw(sides), number, reached_ms + offset_ms, fails))
        batches.append(tuple(several))
        reached_ms = max([reached_ms, *(one[2] for one in several)])
    if least_ms <= 0:
        return Case(tuple(batches))
    return Case(tuple(batches), draw(st.text("r-", max_size=6)), draw(st.sampled_from((0, 2, 5))))


def pairs(taken: list[tuple[str, Any, int]], before: int, after: int, kind: str) -> list[Any]:
    lefts = [one for one in taken if one[0] == "left"]
    rights = [one for one in taken if one[0] == "right"]
    near = [
        (left, right)
        for left in lefts
        for right in rights
        if left[2] - before <= right[2] <= left[2] + after
    ]
    found: list[Any] = [(left[1], right[1], left[2], right[2]) for left, right in near]
    if kind != "inner":
        joined = [left for left, _ in near]
        found += [(one[1], None, one[2], None) for one in lefts if one not in joined]
    if kind == "outer":
        joined = [right for _, right in near]
        found += [(None, one[1], None, one[2]) for one in rights if one not in joined]
    return found


@pytest.mark.promise("windows-undone", "keyed-by-field")
@pytest.mark.parametrize("by_field", [False, True])
@pytest.mark.parametrize(("before", "after"), [(0, 10), (4, 0), (7, 7)])
@pytest.mark.parametrize("kind", ["inner", "left", "outer"])
@given(case=cases(least_ms=1))
def test_joins_within_an_interval(
    before: int, after: int, kind: str, by_field: bool, case: Case
) -> None:
    taken, _ = case.taken(0)
    bolt = join(side, f"{after} ms", before=f"{before} ms", kind=kind)
    found, late = case.results(bolt, by_field=by_field)
    assert sorted(found, key=str) == sorted(pairs(taken, before, after, kind), key=str)
    assert not late


@pytest.mark.promise("windows-late", "keyed-by-field")
@pytest.mark.parametrize("by_field", [False, True])
@pytest.mark.parametrize("allow_late", [0, 12])
@pytest.mark.parametrize("kind", ["inner", "outer"])
@given(case=cases(least_ms=-30))
def test_joins_of_late_events(allow_late: int, kind: str, by_field: bool, case: Case) -> None:
    taken, late = case.taken(allow_late)
    bolt = join(side, "7 ms", before="3 ms", kind=kind, allow_late=f"{allow_late} ms")
    found, found_late = case.results(bolt, by_field=by_field)
    assert sorted(found, key=str) == sorted(pairs(taken, 3, 7, kind), key=str)
    assert found_late == late


def rows(taken: list[tuple[str, Any, int]]) -> list[Any]:
    found = []
    for at, (side_, value, time_ms) in enumerate(taken):
        if side_ == "left":
            seen = [one for one in taken[:at] if one[0] == "right" and one[2] <= time_ms]
            seen.sort(key=lambda one: one[2])
            row = seen[-1] if seen and seen[-1][1] is not None else (None, None, None)
            found.append((value, row[1], time_ms, row[2]))
    return found


@pytest.mark.promise("windows-undone")
@given(case=cases(least_ms=1))
def test_joins_with_a_table(case: Case) -> None:
    found, late = case.results(join_table(side))
    assert (found, late) == (rows(case.taken(0)[0]), [])


@pytest.mark.promise("windows-late")
@pytest.mark.parametrize("allow_late", [0, 12])
@given(case=cases(least_ms=-30))
def test_late_events_see_the_row_of_their_time(allow_late: int, case: Case) -> None:
    taken, late = case.taken(allow_late)
    found = case.results(join_table(side, allow_late=f"{allow_late} ms"))
    assert found == (rows(taken), late)


def side(event: Event) -> str:
    headers = dict(event.headers)
    if event.attempt <= int(headers["fails"] or b""):
        raise ValueError("an event fails")
    return (headers["side"] or b"").decode()
