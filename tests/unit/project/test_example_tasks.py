"""Five common tasks, each in less than 30 lines, are right under failures and restarts."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest

from sequitur.consumer.topology import KeyedBolt, ProcessSettings, Timer
from sequitur.pipelines.topology.topology_file import load_topology
from sequitur.testing import ReorderTester
from tests.support.tree import EXAMPLES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Events = list[tuple[int, Any]]  # event time and value, in order, of one key

_T0 = 1_700_000_000_000
_SETTINGS = {
    "input_topics": ["in"],
    "output_topic": "ordered",
    "event_time": "kafka-timestamp",
    "delay": "0 s",
}
_PROCESS = ProcessSettings.model_validate(
    {"max_attempts": 3, "retry_delay": "10 ms", "retry_jitter": 0}
)


def _means(events: Events, _: int) -> Iterator[Any]:
    for at, (time_ms, _value) in enumerate(events):
        before = [one for one in events[: at + 1] if one[0] > time_ms - 60_000]
        yield float(sum(Fraction(value["usage"]) for _, value in before) / len(before))


def _joined(events: Events, _: int) -> Iterator[Any]:
    for right_ms, right in events:
        for left_ms, left in events:
            is_pair = "paid" in right and "paid" not in left
            if is_pair and left_ms <= right_ms <= left_ms + 300_000:
                yield {"order": left, "payment": right}


def _sessions(events: Events, _: int) -> Iterator[Any]:
    session: list[int] = []
    for time_ms, _value in [*events, (1 << 60, None)]:
        if session and time_ms >= session[-1] + 1_800_000:
            end_ms = session[-1] + 1_800_000
            yield {"begin_ms": session[0], "end_ms": end_ms, "clicks": len(session)}
            session = []
        session.append(time_ms)


def _counts(events: Events, _: int) -> Iterator[Any]:
    yield from range(1, len(events) + 1)


def _silences(events: Events, reached_ms: int) -> Iterator[Any]:
    for (time_ms, _value), (following_ms, _) in pairwise([*events, (reached_ms, None)]):
        if following_ms >= time_ms + 600_000:
            yield time_ms


def _reading(random: Random) -> dict[str, Any]:
    return {"usage": random.choice((0.1, 0.2, 0.7, 1e-9, 1e9))}


def _order_or_payment(random: Random) -> dict[str, Any]:
    return {random.choice(("item", "paid")): random.randrange(1_000)}


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[KeyedBolt], None]:
    """Let one of three calls of a bolt fail after its work, at its first attempt."""

    def fails(given: Any, key: Any) -> bool:
        said = f"{key.value} {given.at_ms if isinstance(given, Timer) else given.place}"
        return bool(given.attempt == 1 and crc32(said.encode()) % 3 == 0)

    def let_fail(bolt: KeyedBolt) -> None:
        kind = type(bolt)
        for name in ("process", "on_timer"):
            before = getattr(kind, name)

            def call(self: Any, given: Any, key: Any, before: Any = before) -> Any:
                returned = before(self, given, key)
                if isinstance(returned, Iterator):
                    returned = list(returned)
                if fails(given, key):
                    raise ValueError("not yet")
                return returned

            monkeypatch.setattr(kind, name, call)

    return let_fail


@pytest.mark.promise("windows-undone", "windows-killed", "keyed-state-undone")
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("name", "output", "make", "of"),
    [
        ("window_mean", "means", _reading, _means),
        ("window_join", "paid", _order_or_payment, _joined),
        ("window_sessions", "sessions", _reading, _sessions),
        ("keyed_count", "counts", _reading, _counts),
        ("keyed_silence", "alerts", _reading, _silences),
    ],
)
def test_a_task(
    *,
    failing: Callable[[KeyedBolt], None],
    name: str,
    output: str,
    make: Callable[[Random], Any],
    of: Callable[[Events, int], Iterator[Any]],
    seed: int,
) -> None:
    path = EXAMPLES / f"{name}.py"
    program = path.read_text().split('"""', 2)[2].strip().splitlines()
    assert len(program) < 30
    topology = load_topology(path)
    for component in topology.bolts:
        if isinstance(component.bolt, KeyedBolt):
            failing(component.bolt)
    random = Random(seed)
    events = _events(random, make)
    with ReorderTester(_SETTINGS, topology, process=_PROCESS, now_ms=_T0 + (1 << 40)) as tester:
        for batch in _batches(events, random):
            tester.run(batch)
            tester.advance(random.choice([0, 0.01]))
            if random.random() < 0.3:
                tester.restart(repeats=random.random() < 0.5)
        _settle(tester)
        for _ in range(2):  # the second time nothing is left to be closed
            tester.drain()
            _settle(tester)
        report = tester.report()
        found = _found(tester, output)
    assert report.processed is not None
    assert (report.processed["dead"], report.processed["pending"]) == (0, 0)
    assert report.processed["failed"] > 10
    assert report.late_for_window == {}
    by_key: dict[bytes, Events] = defaultdict(list)
    for time_ms, key, value in events:
        by_key[key.encode()].append((time_ms, value))
    wanted = {key: list(of(several, events[-1][0])) for key, several in by_key.items()}
    assert found == {key: several for key, several in wanted.items() if several}
    assert sum(map(len, found.values())) > 10


def _settle(tester: ReorderTester) -> None:
    while sum((tester.report().processed or {})[one] for one in ("pending", "made_pending")):
        tester.advance(0.01)


def _events(random: Random, make: Callable[[Random], Any]) -> list[tuple[int, str, Any]]:
    found = []
    time_ms = _T0
    for _ in range(70):
        time_ms += random.choice((0, 1_000, 20_000, 59_999, 60_000, 299_000, 600_000, 1_800_000))
        found.append((time_ms, random.choice("abc"), make(random)))
    return found


def _batches(events: Sequence[tuple[int, str, Any]], random: Random) -> Iterator[list[Any]]:
    """Yield rows by batch; a frontier divides no events of one time."""
    batch: list[Any] = []
    for one, following in pairwise([*events, (1 << 60, "", None)]):
        time_ms, key, value = one
        batch.append({"key": key, "value": json.dumps(value), "timestamp_ms": time_ms})
        if following[0] > time_ms and random.random() < 0.15:
            yield batch
            batch = []
    yield batch


def _found(tester: ReorderTester, output: str) -> dict[bytes, list[Any]]:
    """Return the values of an output by key."""
    found: dict[bytes, list[Any]] = defaultdict(list)
    for one in tester.records("ordered"):
        found[one.key or b""].append(json.loads(one.value or b""))
    assert output
    return dict(found)
