"""State, map and list of a key: whatever fails, they come to what a plain computation gives."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sequitur.consumer.topology import EventValues, ProcessSettings, TopologyTester
from tests.support.keyed_counts import MOST_ATTEMPTS, WHERE, by_key, counting, cut
from tests.support.keyed_kinds import OPERATIONS, TTL_MS, AsyncKinds, Kinds, expected
from tests.support.step_runs import StepRuns

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.keyed_counts import Given

_SETTINGS = ProcessSettings.model_validate(
    {"max_attempts": MOST_ATTEMPTS, "retry_delay": "1 s", "retry_jitter": 0}
)
_DOES = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 4)), max_size=4)


@st.composite
def _streams(draw: st.DrawFn) -> list[Given]:
    """Events in order, of a few keys; few of them fail, and some are a time to live apart."""
    found: list[Given] = []
    at_ms = 1_000
    for number in range(draw(st.integers(1, 24))):
        at_ms += draw(st.sampled_from([0, 1, 2, 5, TTL_MS - 1, TTL_MS, TTL_MS + 1]))
        fails = draw(st.sampled_from([0, 0, 0, 1, 2, MOST_ATTEMPTS]))
        where = draw(st.sampled_from(WHERE))
        plan = {"n": number, "fails": fails, "where": where, "does": draw(_DOES)}
        found.append((at_ms, draw(st.sampled_from([b"a", b"a\0", b"b"])), plan))
    return found


_CUTS = st.sets(st.integers(0, 24), max_size=6)


_NOTHING_FAILS: dict[str, Any] = {"n": 0, "fails": 0, "where": "call", "does": []}
_LOOKED_THEN_EXPIRED: list[Given] = [
    (1_000, b"a", {**_NOTHING_FAILS, "does": [("count", 1)]}),
    (1_000, b"a", {**_NOTHING_FAILS, "n": 1, "fails": 1, "where": "later"}),
    (1_000 + TTL_MS, b"a", {**_NOTHING_FAILS, "n": 2}),
]
"""An event that changes nothing fails in a later stage, and its key expires in the same step."""


@pytest.mark.promise("keyed-kinds", "keyed-ttl")
@example(events=_LOOKED_THEN_EXPIRED, cuts=set(), stages=2, partitions=None, waits=False)
@given(
    events=_streams(),
    cuts=_CUTS,
    stages=st.sampled_from([1, 2]),
    partitions=st.sampled_from([None, 2]),
    waits=st.booleans(),
)
def test_outputs_are_those_of_a_plain_computation(
    events: list[Given], cuts: set[int], stages: int, partitions: int | None, waits: bool
) -> None:
    tester = TopologyTester(counting(stages, keyed=Kinds()), _SETTINGS, partitions=partitions)
    for part in cut(events, cuts):
        tester.run([(key, json.dumps(plan), at_ms) for at_ms, key, plan in part])
        if waits:
            tester.advance(1)
    tester.retry_all()
    reached_ms = events[-1][0]
    assert by_key(tester.records("out")) == expected(events, reached_ms)
    tester.run(watermark_ms=reached_ms + 10 * TTL_MS)
    tester.retry_all()
    assert by_key(tester.records("out")) == expected(events, reached_ms + 10 * TTL_MS)


_DEATHS = st.dictionaries(
    st.integers(0, 6), st.tuples(st.integers(0, 12), st.booleans()), max_size=3
)
"""Of steps that die first: after how many writes, and whether another process goes on."""


@pytest.mark.promise("keyed-kinds", "keyed-ttl", "keyed-killed", "keyed-async")
@settings(max_examples=20)  # each has tens of steps with files
@given(
    events=_streams(),
    cuts=_CUTS,
    stages=st.sampled_from([1, 2]),
    most=st.sampled_from([None, 2]),
    deaths=_DEATHS,
    concurrency=st.sampled_from([1, 1, 3]),
)
def test_a_job_that_dies_in_its_steps_goes_on_from_its_files(  # noqa: PLR0917 - Hypothesis
    tmp_path_factory: pytest.TempPathFactory,
    events: list[Given],
    cuts: set[int],
    stages: int,
    most: int | None,
    deaths: dict[int, tuple[int, bool]],
    concurrency: int,
) -> None:
    """At its end nothing is kept: all that expires is gone from the files, too."""
    folder: Path = tmp_path_factory.mktemp("steps")
    process = _SETTINGS.model_copy(update={"max_spout_pending": most})
    keyed = Kinds() if concurrency == 1 else AsyncKinds()
    topology = counting(stages, keyed=keyed, concurrency=concurrency)
    runs = StepRuns(topology, folder, process, partitions=2, life="0")
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
    assert by_key(runs.records("out")) == expected(events, events[-1][0])
    runs.reached_ms = events[-1][0] + 10 * TTL_MS
    runs.step()
    runs.to_the_end(most=400)
    assert by_key(runs.records("out")) == expected(events, runs.reached_ms)
    assert runs.next_timer_ms is None
    assert runs.kept() == []


@pytest.mark.promise("keyed-async", "keyed-ttl")
def test_state_expires_between_async_calls_of_a_key(tmp_path: Path) -> None:
    """A timer that is called for an event touches the key of the event."""
    events: list[Given] = [
        (at_ms, b"a\0", {"n": n, "fails": 0, "where": "call", "does": [one]})
        for n, (at_ms, one) in enumerate([(1048, ("timer", 0)), (1062, ("put", 0))])
    ]
    topology = counting(1, keyed=AsyncKinds(), concurrency=3)
    runs = StepRuns(topology, tmp_path, _SETTINGS, life="0", reached_ms=1062)
    runs.step(
        [
            EventValues(key, json.dumps(plan).encode(), (), at_ms, "in", 0, plan["n"], 0)
            for at_ms, key, plan in events
        ]
    )
    assert by_key(runs.records("out")) == expected(events, 1062)
