"""Whatever fails, and wherever steps are cut, state and timers come to what no failure gives."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sequitur.consumer.topology import EventValues, ProcessSettings, TopologyTester
from tests.support.keyed_counts import GAP_MS, MOST_ATTEMPTS, WHERE, by_key, counting, cut, expected
from tests.support.step_runs import StepRuns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.support.keyed_counts import Given

_SETTINGS = ProcessSettings.model_validate(
    {"max_attempts": MOST_ATTEMPTS, "retry_delay": "1 s", "retry_jitter": 0}
)


@st.composite
def _streams(draw: st.DrawFn) -> list[Given]:
    """Events in order, of a few keys; few of them fail."""
    found: list[Given] = []
    at_ms = 1_000
    for number in range(draw(st.integers(1, 24))):
        at_ms += draw(st.sampled_from([0, 0, 1, 2, 5, GAP_MS + 1]))
        fails = draw(st.sampled_from([0, 0, 0, 1, 2, MOST_ATTEMPTS]))
        plan = {"n": number, "fails": fails, "where": draw(st.sampled_from(WHERE))}
        found.append((at_ms, draw(st.sampled_from([b"a", b"b", b"c"])), plan))
    return found


_CUTS = st.sets(st.integers(0, 24), max_size=6)


def _wanted(events: Sequence[Given], reached_ms: int) -> dict[bytes, list[Any]]:
    return {key: said for key, said in expected(events, reached_ms).items() if said}


@pytest.mark.promise("keyed-state-undone")
@given(_streams(), _CUTS, st.sampled_from([1, 2]), st.sampled_from([None, 2]), st.booleans())
def test_outputs_are_those_of_a_run_without_failures_and_cuts(
    events: list[Given], cuts: set[int], stages: int, partitions: int | None, waits: bool
) -> None:
    tester = TopologyTester(counting(stages), _SETTINGS, partitions=partitions)
    for part in cut(events, cuts):
        tester.run([(key, json.dumps(plan), at_ms) for at_ms, key, plan in part])
        if waits:
            tester.advance(1)
    tester.retry_all()
    reached_ms = events[-1][0]
    assert by_key(tester.records("out")) == _wanted(events, reached_ms)
    tester.run(watermark_ms=reached_ms + 10 * GAP_MS)
    tester.retry_all()
    assert by_key(tester.records("out")) == _wanted(events, reached_ms + 10 * GAP_MS)
    dead = sum(plan["fails"] >= MOST_ATTEMPTS for *_, plan in events)
    assert len(tester.acked) == len(events) - dead


_DEATHS = st.dictionaries(
    st.integers(0, 6), st.tuples(st.integers(0, 12), st.booleans()), max_size=3
)
"""Of steps that die first: after how many writes, and whether another process goes on."""


@pytest.mark.promise("keyed-state-undone", "keyed-killed")
@settings(max_examples=20)  # each has tens of steps with files
@given(
    events=_streams(),
    cuts=_CUTS,
    stages=st.sampled_from([1, 2]),
    most=st.sampled_from([None, 2]),
    deaths=_DEATHS,
)
def test_a_job_that_dies_in_its_steps_goes_on_from_its_files(  # noqa: PLR0917 - Hypothesis
    tmp_path_factory: pytest.TempPathFactory,
    events: list[Given],
    cuts: set[int],
    stages: int,
    most: int | None,
    deaths: dict[int, tuple[int, bool]],
) -> None:
    """Each step is run again from its documents; its process has all or nothing in memory."""
    folder: Path = tmp_path_factory.mktemp("steps")
    process = _SETTINGS.model_copy(update={"max_spout_pending": most})
    runs = StepRuns(counting(stages), folder, process, partitions=2, life="0")
    for number, part in enumerate(cut(events, cuts)):
        runs.reached_ms = part[-1][0]
        new = [
            EventValues(key, json.dumps(plan).encode(), (), at_ms, "in", key[0] % 2, plan["n"], 0)
            for at_ms, key, plan in part
        ]
        writes, is_new = deaths.get(number, (0, False))
        if number in deaths:
            runs.step_that_dies(after=writes)
        if is_new:
            runs.life = str(number + 1)
        runs.step(new)
        runs.now_ms += 1
    runs.to_the_end(most=400)
    assert by_key(runs.records("out")) == _wanted(events, events[-1][0])
    runs.reached_ms = events[-1][0] + 10 * GAP_MS
    runs.step()
    runs.to_the_end(most=400)
    assert by_key(runs.records("out")) == _wanted(events, runs.reached_ms)
    assert runs.next_timer_ms is None
