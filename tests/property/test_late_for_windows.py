"""Events older than the watermark: each counts in its open windows, or goes to `late` once."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.windows import Collect, hopping, session, sliding, tumbling
from tests.support.window_topologies import results_of, run, windows_tester

if TYPE_CHECKING:
    from sequitur.consumer.topology import KeyedBolt

_END_MS = 10_000_000
Batches = list[list[tuple[int, int]]]  # time and number of each event, by batch


@st.composite
def streams(draw: st.DrawFn) -> Batches:
    """Draw batches, some events of which are older than what the batches before have reached."""
    times_ms = st.lists(st.integers(-40, 15), max_size=5)
    batches, reached_ms, number = [], 1_000, 0
    for _ in range(draw(st.integers(0, 6))):
        batch = []
        for offset_ms in draw(times_ms):
            batch.append((reached_ms + offset_ms, number))
            number += 1
        batches.append(sorted(batch))
        reached_ms = max([reached_ms, *(time_ms for time_ms, _ in batch)])
    return batches


def reached_before(batches: Batches) -> list[int | None]:
    """Return for each batch the watermark before it."""
    found: list[int | None] = []
    reached_ms = None
    for batch in batches:
        found.append(reached_ms)
        known = [one for one in (reached_ms, *(time_ms for time_ms, _ in batch)) if one is not None]
        reached_ms = max(known, default=None)
    return found


def results(batches: Batches, bolt: KeyedBolt) -> tuple[list[Any], list[int]]:
    """Return the results, and the numbers of late events."""
    tester = windows_tester(bolt, "late")
    events = [[("a", number, time_ms) for time_ms, number in batch] for batch in batches]
    run(tester, events, until_ms=_END_MS)
    assert not tester.failed
    assert not tester.held
    assert not tester.dead_letters
    return results_of(tester).get(b"a", []), results_of(tester, "late").get(b"a", [])


def is_closed(end_ms: int, passed_ms: int | None) -> bool:
    return passed_ms is not None and end_ms <= passed_ms


@pytest.mark.promise("windows-late")
@pytest.mark.parametrize(("size", "advance"), [(10, 10), (20, 5), (7, 3)])
@pytest.mark.parametrize("allow_late", [0, 12])
@given(batches=streams())
def test_aligned_windows(size: int, advance: int, allow_late: int, batches: Batches) -> None:
    windows: dict[int, list[int]] = defaultdict(list)
    late = []
    for batch, passed_ms in zip(batches, reached_before(batches), strict=True):
        for time_ms, number in batch:
            ends_ms = [
                begin + size
                for begin in range(time_ms - size + 1, time_ms + 1)
                if begin % advance == 0
            ]
            open_ms = [one for one in ends_ms if not is_closed(one + allow_late, passed_ms)]
            for end_ms in open_ms:
                windows[end_ms].append(number)
            if open_ms != ends_ms:
                late.append(number)
    wanted = [(one, sorted(windows[one])) for one in sorted(windows)]
    given: dict[str, Any] = {"allow_late": f"{allow_late} ms", "all": Collect(_number)}
    bolt = hopping(f"{size} ms", f"{advance} ms", **given)
    if size == advance:
        bolt = tumbling(f"{size} ms", **given)
    found, found_late = results(batches, bolt)
    assert [(one["end_ms"], sorted(one["all"])) for one in found] == wanted
    assert found_late == late


@pytest.mark.promise("windows-late")
@pytest.mark.parametrize("allow_late", [0, 12])
@given(batches=streams())
def test_sliding_windows(allow_late: int, batches: Batches) -> None:
    kept: list[tuple[int, int]] = []
    wanted, late = [], []
    for batch, passed_ms in zip(batches, reached_before(batches), strict=True):
        for time_ms, number in batch:
            if is_closed(time_ms + allow_late, passed_ms):
                late.append(number)
                continue
            kept.append((time_ms, number))
            within = [one for one in kept if time_ms - 10 < one[0] <= time_ms]
            within.sort(key=lambda one: one[0])
            wanted.append((time_ms, [one for _, one in within]))
    bolt = sliding("10 ms", allow_late=f"{allow_late} ms", all=Collect(_number))
    found, found_late = results(batches, bolt)
    assert [(one["end_ms"], one["all"]) for one in found] == wanted
    assert found_late == late


@pytest.mark.promise("windows-late")
@pytest.mark.parametrize("allow_late", [0, 25])
@given(batches=streams())
def test_sessions(allow_late: int, batches: Batches) -> None:
    opened: list[list[tuple[int, int]]] = []
    wanted, late = [], []

    def close(now_ms: int) -> None:
        for one in sorted(opened, key=max):
            if max(one)[0] + 10 + allow_late <= now_ms:
                opened.remove(one)
                wanted.append((min(one)[0], max(one)[0] + 10, sorted(one for _, one in one)))

    before = reached_before(batches)
    after = [*before, _END_MS][1:]
    for batch, passed_ms, reached_ms in zip(batches, before, after, strict=True):
        for time_ms, number in batch:
            close(time_ms)
            joined = [one for one in opened if min(one)[0] - 10 < time_ms < max(one)[0] + 10]
            if not joined and is_closed(time_ms + 10 + allow_late, passed_ms):
                late.append(number)
                continue
            for one in joined:
                opened.remove(one)
            opened.append([(time_ms, number), *(some for one in joined for some in one)])
        close(reached_ms or -1)
    bolt = session("10 ms", allow_late=f"{allow_late} ms", all=Collect(_number))
    found, found_late = results(batches, bolt)
    assert [(one["begin_ms"], one["end_ms"], sorted(one["all"])) for one in found] == wanted
    assert found_late == late


@pytest.mark.parametrize(("size", "advance"), [(10, 10), (20, 5)])
@given(batches=streams())
def test_early_results_of_a_window_are_numbered(size: int, advance: int, batches: Batches) -> None:
    events = sorted(one for batch in batches for one in batch)
    wanted = []
    ends_ms = {
        begin + size
        for time_ms, _ in events
        for begin in range(time_ms - size + 1, time_ms + 1)
        if begin % advance == 0
    }
    for end_ms in sorted(ends_ms):
        within = [one for one in events if end_ms - size <= one[0] < end_ms]
        version = 0
        for tick_ms in range((end_ms - size) // 4 * 4, end_ms, 4):
            if any(tick_ms - 4 <= time_ms < tick_ms for time_ms, _ in within):
                version += 1
                numbers = [one for time_ms, one in within if time_ms < tick_ms]
                wanted.append((end_ms, numbers, version, False))
        wanted.append((end_ms, [one for _, one in within], version + 1, True))
    bolt = hopping(f"{size} ms", f"{advance} ms", early="4 ms", late="drop", all=Collect(_number))
    tester = windows_tester(bolt)
    run(tester, [[("a", number, time_ms)] for time_ms, number in events], until_ms=_END_MS)
    found = [
        (one["end_ms"], one["all"], one["version"], one["is_final"])
        for one in results_of(tester).get(b"a", [])
    ]
    assert sorted(found, key=lambda one: (one[0], one[2])) == wanted


def _number(event: Any) -> int:
    return int(event.value)
