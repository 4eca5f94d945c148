"""Of keyed bolts by another field: what does not depend on order is that of no failures."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sequitur.consumer.topology import EventValues, ProcessSettings, TopologyTester
from sequitur.consumer.topology.engine.key_groups import key_value
from sequitur.consumer.topology.engine.keyed import decoded
from sequitur.pipelines.topology.key_files import KeyFiles
from tests.support.keyed_fields import (
    LASTS_MS,
    MOST_ATTEMPTS,
    SIZE_MS,
    WHERE,
    WIDE_MS,
    expected,
    lasting,
    lasts,
    said_of,
    windows,
)
from tests.support.step_runs import StepRuns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from sequitur.consumer.topology import Topology
    from tests.support.keyed_fields import Given

_SETTINGS = ProcessSettings.model_validate(
    {"max_attempts": MOST_ATTEMPTS, "retry_delay": "1 s", "retry_jitter": 0}
)
_END_MS = 10 * WIDE_MS


@st.composite
def _streams(draw: st.DrawFn) -> list[Given]:
    """Events in order, of a few keys and users; few of them fail."""
    found: list[Given] = []
    at_ms = 1_000
    for number in range(draw(st.integers(1, 24))):
        at_ms += draw(st.sampled_from([0, 0, 1, 2, 5, SIZE_MS + 1, WIDE_MS]))
        fails = draw(st.sampled_from([0, 0, 0, 1, 2, MOST_ATTEMPTS]))
        given_to = draw(st.lists(st.sampled_from(["x", "y", "z"]), min_size=1, max_size=2))
        where = draw(st.sampled_from(WHERE))
        plan = {"n": number, "fails": fails, "where": where, "users": given_to}
        found.append((at_ms, draw(st.sampled_from([b"a", b"b", b"c"])), plan))
    return found


_CUTS = st.sets(st.integers(0, 24), max_size=6)


def _cut(events: Sequence[Given], cuts: Iterable[int]) -> list[list[Given]]:
    """Divide events into steps, between two times: a frontier divides no others."""
    parts: list[list[Given]] = [[]]
    for place, one in enumerate(events):
        if place in cuts and parts[-1] and parts[-1][-1][0] < one[0]:
            parts.append([])
        parts[-1].append(one)
    return parts


def _states(kept: Iterable[tuple[str, bytes, bytes]]) -> dict[tuple[str, str], dict[str, int]]:
    found = {}
    for bolt, key, stored in kept:
        entry = decoded(stored)
        assert entry.state is not None
        found[bolt, key_value(key)] = msgspec.msgpack.decode(entry.state)
    return found


@pytest.mark.promise("keyed-by-field")
@given(_streams(), _CUTS, st.sampled_from([1, 2, 3]), st.sampled_from([None, 2, 3]), st.booleans())
def test_windows_and_states_are_those_of_a_run_without_failures_and_cuts(
    events: list[Given], cuts: set[int], parallelism: int, partitions: int | None, waits: bool
) -> None:
    tester = TopologyTester(windows(parallelism), _SETTINGS, partitions=partitions)
    for part in _cut(events, cuts):
        tester.run([(key, json.dumps(plan), at_ms) for at_ms, key, plan in part])
        if waits:
            tester.advance(1)
    tester.retry_all()
    reached_ms = events[-1][0]
    assert said_of(tester.records("out")) == expected(events, reached_ms)[0]
    tester.run(watermark_ms=reached_ms + _END_MS)
    tester.retry_all()
    said, states = expected(events, reached_ms + _END_MS)
    assert said_of(tester.records("out")) == said
    kept = (
        (bolt, one.key, one.entry or b"")
        for (bolt, _), store in tester._keys.items()
        for one in store.all()
    )
    assert _states(kept) == states


_STEPS = st.dictionaries(
    st.integers(0, 6), st.tuples(st.integers(0, 20), st.sampled_from([1, 2, 3, 5])), max_size=3
)
"""Of steps that die first: after how many writes, and how many tasks the next life has."""


@pytest.mark.promise("keyed-by-field", "keyed-killed")
@pytest.mark.parametrize("concurrency", [1, 3], ids=["plain", "async"])
@settings(max_examples=12)  # each has tens of steps with files
@given(events=_streams(), cuts=_CUTS, deaths=_STEPS)
def test_a_job_that_dies_goes_on_with_other_numbers_of_tasks(
    tmp_path_factory: pytest.TempPathFactory,
    events: list[Given],
    cuts: set[int],
    deaths: dict[int, tuple[int, int]],
    concurrency: int,
) -> None:
    folder: Path = tmp_path_factory.mktemp("steps")
    runs = StepRuns(windows(2, concurrency=concurrency), folder, _SETTINGS, partitions=2, life="0")
    _run(runs, _cut(events, cuts), deaths, partial(windows, concurrency=concurrency))
    runs.to_the_end(most=400)
    assert said_of(runs.records("out")) == expected(events, events[-1][0])[0]
    runs.reached_ms = events[-1][0] + _END_MS
    runs.step()
    runs.to_the_end(most=400)
    said, states = expected(events, runs.reached_ms)
    assert said_of(runs.records("out")) == said
    assert runs.next_timer_ms is None
    assert _states(_kept_by(runs)) == states


@pytest.mark.promise("keyed-by-field", "keyed-ttl")
@settings(max_examples=12)
@given(events=_streams(), cuts=_CUTS, deaths=_STEPS, fails=st.booleans())
def test_state_is_forgotten_in_silence_and_never_sooner(
    tmp_path_factory: pytest.TempPathFactory,
    events: list[Given],
    cuts: set[int],
    deaths: dict[int, tuple[int, int]],
    *,
    fails: bool,
) -> None:
    """A key is kept longer if an older event waits, as its timers are called later."""
    if not fails:
        events = [(at_ms, key, plan | {"fails": 0}) for at_ms, key, plan in events]
    runs = StepRuns(lasting(), tmp_path_factory.mktemp("steps"), _SETTINGS, partitions=2, life="0")
    _run(runs, _cut(events, cuts), deaths, lambda _: lasting())
    runs.to_the_end(most=400)
    assert runs.reached_ms is not None
    kept = {key: set(numbers) for key, numbers in _numbers(runs).items()}
    expected = {key: {*numbers} for key, numbers in lasts(events, runs.reached_ms).items()}
    if fails:
        assert all(numbers <= kept.get(key, set()) for key, numbers in expected.items())
    else:
        assert kept == expected
    runs.reached_ms = events[-1][0] + LASTS_MS
    runs.step()
    runs.to_the_end(most=400)
    assert not [*_kept_by(runs)]
    assert runs.next_timer_ms is None


def _numbers(runs: StepRuns) -> dict[str, list[int]]:
    return {
        key_value(key): msgspec.msgpack.decode(decoded(stored).state or b"")
        for bolt, key, stored in _kept_by(runs)
        if bolt == "lasting"
    }


def _run(
    runs: StepRuns,
    parts: Sequence[Sequence[Given]],
    deaths: dict[int, tuple[int, int]],
    topology: Callable[[int], Topology],
) -> None:
    """Run steps; some die first, and another life goes on with another number of tasks."""
    for number, part in enumerate(parts):
        runs.reached_ms = part[-1][0]
        new = [
            EventValues(key, json.dumps(plan).encode(), (), at_ms, "in", key[0] % 2, plan["n"], 0)
            for at_ms, key, plan in part
        ]
        if number in deaths:
            writes, tasks = deaths[number]
            runs.step_that_dies(after=writes)
            runs.life, runs.topology = str(number + 1), topology(tasks)
        runs.step(new)
        runs.now_ms += 1


def _kept_by(runs: StepRuns) -> Iterator[tuple[str, bytes, bytes]]:
    for one in runs.keys:
        for row in KeyFiles(*one.sources).range(b"", b"\xff" * 9):
            yield one.component, *row
