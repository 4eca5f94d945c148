"""A chain of functions goes the executor's short ways, and behaves as if there were none.

Each topology runs twice, in the job's tasks and files. A trace keeps the second run off the short
ways.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sequitur.consumer.topology import BasicBolt, TopologyBuilder, bolt
from sequitur.consumer.topology.engine.runner import Runner
from sequitur.consumer.topology.engine.task_output import SpoutOutput
from sequitur.pipelines.topology.batch import FileBatch
from tests.support.examples import examples
from tests.support.step_runs import NoTrace, StepRuns, each_of, event
from tests.support.topology_pairs import settings as settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sequitur.consumer.topology import (
        BasicOutputCollector,
        EventValues,
        OutputCollector,
        Topology,
        TopologyContext,
        Tuple,
    )

_PARTITIONS: Final = 2
_MANY: Final = 150
"""More than the executor lets wait before it follows them."""
_calls: Final[list[tuple[str, int, int, int]]] = []
"""Bolt, number of the event, attempt and part of each call, in order."""


def _do(name: str, given: Tuple, key: Any, said: dict[str, Any], part: int) -> Any:
    """Do to a tuple what its event says."""
    _calls.append((name, said["number"], given.attempt, part))
    how, times = said[name]
    value = json.dumps(said).encode()
    if given.attempt > times:
        how = "yield"
    ways: Mapping[str, Any] = {
        "yield": lambda: each_of((key, value, part)),
        "two": lambda: each_of((key, value, part), (key, value, part + 1)),
        "many": lambda: each_of(*((key, value, part + one) for one in range(_MANY))),
        "list": lambda: [(key, value, part)],
        "field": lambda: each_of({"key": key, "value": value, "part": part}),
        "text": lambda: each_of((key, value.decode(), part)),
        "other": lambda: iter([[key, value, part]]),
        "nothing": lambda: None,
        "none": each_of,
        "narrow": lambda: each_of((key, value, part), (key,)),
        "tuple": lambda: (key, value, part),
        "raise": lambda: each_of(error=ValueError(how)),
        "raise after": lambda: each_of((key, value, part), error=ValueError(how)),
        "exit": lambda: each_of((key, value, part), error=SystemExit(3)),
        "large": lambda: each_of((key, value + bytes(2 << 20), part)),
        "unwritable": lambda: each_of((key, float("nan"), part)),
    }
    return ways[how]()


@bolt(fields=("key", "value", "part"))
def first(given: Tuple) -> Any:
    return _do("first", given, given["key"], json.loads(given["value"]), 0)


class Second(BasicBolt):
    """Emits before its first tuple, and sometimes by its collector, too."""

    fields = ("key", "value", "part")

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        super().prepare(context, collector)
        said = {**_plain(), "number": -1 - context.task}
        collector.emit((None, json.dumps(said).encode(), 0))

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> Any:  # noqa: A002
        said = json.loads(tuple["value"])
        if said["collects"]:
            collector.emit(tuple.values)
        return _do("second", tuple, tuple["key"], said, tuple["part"])


@bolt(fields=("key", "value"))
def third(given: Tuple) -> Iterator[Any]:
    said = json.loads(given["value"])
    for values in _do("third", given, given["key"], said, given["part"]) or ():
        yield values if isinstance(values, dict) else tuple(values)[:2]


def _topology() -> Topology:
    builder = TopologyBuilder("chain")
    builder.set_spout("events")
    builder.set_bolt("first", first).fields_grouping("events", "key")
    builder.set_bolt("second", Second()).local_grouping("first")
    builder.set_bolt("third", third).local_grouping("second")
    builder.set_output("out", key="key", value="value").local_grouping("third")
    return builder.build()


_WAYS = (
    "yield", "two", "many", "list", "field", "text", "other", "nothing", "none", "narrow", "tuple",
    "raise", "raise after", "exit", "large", "unwritable",
)  # fmt: skip
_HOW = st.tuples(
    st.one_of(st.just("yield"), st.sampled_from(_WAYS)), st.sampled_from([0, 1, 1, 2, 9])
)
_PLANS = st.fixed_dictionaries({
    "first": _HOW, "second": _HOW, "third": _HOW, "collects": st.booleans(),
})  # fmt: skip
_BATCHES = st.lists(
    st.lists(st.tuples(st.sampled_from([b"a", b"b", None]), _PLANS), max_size=8),
    min_size=1,
    max_size=3,
)


def _went(batches: Sequence[Sequence[EventValues]], given: Mapping[str, Any]) -> dict[str, Any]:
    """Run batches to their end; return all that comes of them, and every call in order."""
    _calls.clear()
    with tempfile.TemporaryDirectory(prefix="short-") as folder:
        runs = StepRuns(_topology(), Path(folder), settings_of(**given), _PARTITIONS, life="short")
        waited = []
        for batch in batches:
            runs.step(batch)
            runs.now_ms += 70
            waited.append([(one.event[6], one.attempts, one.reason) for one in runs.pending()])
        runs.to_the_end()
        told = "reason", "attempts", "path", "traceback"
        return {
            "records": runs.records("out"),
            "immediately": runs.records("out", is_all=True),
            "dead": runs.dead(),
            "told": [[one[f"sequitur-dlq-{name}"] for name in told] for one in runs.dead_headers()],
            "waited": waited,
            "counts": dict(runs.counts),
            "calls": list(_calls),
        }


def _events(batches: Any) -> list[list[EventValues]]:
    numbers = itertools.count()
    return [
        [
            event(number, json.dumps({**said, "number": number}).encode(), key=key, partition=place)
            for key, said in batch
            for number in [next(numbers)]
            for place in [0 if key is None else key[0] % _PARTITIONS]
        ]
        for batch in batches
    ]


def _plain(**of: tuple[str, int]) -> dict[str, Any]:
    """What an event says with which all goes right but what is named."""
    return {**dict.fromkeys(("first", "second", "third"), ("yield", 9)), "collects": False, **of}


@pytest.mark.promise("process-random-failures-retries")
@settings(max_examples=examples(0.5))
@example(
    batches=[[(b"a", _plain()), (b"a", _plain(third=("raise", 1))), (b"a", _plain())]],
    ordering="key",
    attempts=2,
    most=None,
    ackers=None,
)
@given(
    batches=_BATCHES,
    ordering=st.sampled_from(["key", "key", "none"]),
    attempts=st.sampled_from([1, 2, 3]),
    most=st.sampled_from([None, None, 1, 3]),
    ackers=st.sampled_from([None, None, 0]),
)
def test_the_short_ways_change_nothing(
    batches: Any, ordering: str, attempts: int, most: int | None, ackers: int | None
) -> None:
    """The same calls in the same order, records, dead letters, retries and counts."""
    given = {
        "ordering": ordering,
        "max_attempts": attempts,
        "max_spout_pending": most,
        "ackers": ackers,
    }
    events = _events(batches)
    short = _went(events, given)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FileBatch, "trace", NoTrace())
        assert _went(events, given) == short


def test_only_a_trace_keeps_a_chain_off_the_short_ways() -> None:
    """Otherwise the test above compares a way with itself."""
    taken: list[str] = []

    def noting(name: str, made: Any) -> Any:
        def noted(*arguments: Any) -> Any:
            found = made(*arguments)
            taken.extend([name] if found is not None else [])
            return found

        return noted

    with pytest.MonkeyPatch.context() as patched:
        for kind, name in ((Runner, "_short_run"), (SpoutOutput, "_short_way")):
            patched.setattr(kind, name, noting(name, getattr(kind, name)))
        _went(_events([[(b"a", _plain())]]), {})
        assert sorted(set(taken)) == ["_short_run", "_short_way"]
        assert taken.count("_short_run") == 3 * taken.count("_short_way")
        taken.clear()
        patched.setattr(FileBatch, "trace", NoTrace())
        _went(_events([[(b"a", _plain())]]), {})
        assert not taken
