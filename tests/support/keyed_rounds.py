"""What the keyed topologies of kill rounds come to, computed from the events that came out."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sequitur.consumer.reorder.timestamps import EVENT_TIME_HEADER
from sequitur.consumer.topology import ProcessSettings
from tests.spark import keyed_topology, tasks_topology, windowed_topology
from tests.support.output_reading import read_output

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sequitur.producer import KafkaSettings
    from tests.spark.kill_rounds import Rounds

    Events = dict[bytes | None, list[Any]]

PROCESS: Final = ProcessSettings.model_validate({"max_attempts": 2, "retry_delay": "20 ms"})


@dataclass(frozen=True, slots=True)
class KeyedJob:
    """A job for kill rounds, and what is checked of its outputs.

    Attributes:
        module: The module with its topology.
        topics: Environment variables with topics of its own, beside the output topic.
        check: Takes the broker, these topics, the last life's report, and the events that came out
            and those that were given up, by key.
    """

    module: Any
    topics: tuple[str, ...]
    check: Callable[[KafkaSettings, Sequence[str], Mapping[str, Any], Events, Events], None]

    @property
    def job(self) -> dict[str, Any]:
        """Arguments of a life of it."""
        return {"topology": Path(self.module.__file__), "process": PROCESS}

    def check_all(self, rounds: Rounds, report: dict[str, Any], topics: Sequence[str]) -> None:
        """Each event is out once and in order, or given up; and what follows from them is out."""
        dead_letters = PROCESS.dead_letters(rounds.settings.output_topic)
        rounds.check(report, (dead_letters,))
        counts = report["processed"]
        assert (counts["taken"], counts["pending"]) == (report["released"], 0)
        assert counts["dead"] > 0
        assert (counts["made"], counts["made_pending"]) == (counts["made_acked"], 0)
        out = _by_key(rounds.kafka, rounds.settings.output_topic)
        self.check(rounds.kafka, topics, counts, out, _by_key(rounds.kafka, dead_letters))


def _by_key(kafka: KafkaSettings, topic: str) -> Events:
    found: Events = defaultdict(list)
    for record in read_output(kafka, topic):
        found[record.key].append(json.loads(record.value or b""))
    return found


def _check_sessions(
    kafka: KafkaSettings,
    topics: Sequence[str],
    counts: Mapping[str, Any],
    out: Events,
    dead: Events,
) -> None:
    """Each event is out with its session; so is each session that ended."""
    reached_ms = max(one["at"] for several in (*out.values(), *dead.values()) for one in several)
    wanted, placed = _sessions(out, reached_ms)
    said = {key: [(one["begin"], one["count"]) for one in several] for key, several in out.items()}
    assert said == placed
    assert _by_key(kafka, topics[0]) == wanted
    # A timer that was called behind an event that then failed may be called for nothing.
    assert counts["made"] >= sum(map(len, wanted.values())) > 0


def _check_groups(
    kafka: KafkaSettings,
    topics: Sequence[str],
    counts: Mapping[str, Any],
    out: Events,
    dead: Events,
) -> None:
    """The same, and each window of a group that is over is out once."""
    _check_sessions(kafka, topics, counts, out, dead)
    reached_ms = max(one["at"] for several in (*out.values(), *dead.values()) for one in several)
    size_ms = keyed_topology.WINDOW_MS
    groups: dict[int, Counter[int]] = defaultdict(Counter)
    for one in (one for several in out.values() for one in several):
        groups[one["n"] % keyed_topology.GROUPS][one["at"] // size_ms] += 1
    over = {
        b"%d" % group: [
            [window, count]
            for window, count in sorted(several.items())
            if (window + 1) * size_ms <= reached_ms
        ]
        for group, several in groups.items()
    }
    assert _by_key(kafka, topics[1]) == {group: found for group, found in over.items() if found}


def _sessions(
    by_key: Events, reached_ms: int
) -> tuple[dict[bytes | None, list[list[int]]], dict[bytes | None, list[tuple[int, int]]]]:
    """Return the sessions that ended, and the place of each event in its session."""
    gap_ms = keyed_topology.GAP_MS
    ended: dict[bytes | None, list[list[int]]] = {}
    placed: dict[bytes | None, list[tuple[int, int]]] = {}
    for key, several in by_key.items():
        sessions: list[list[int]] = []
        for at_ms in (one["at"] for one in several):
            if sessions and at_ms < sessions[-1][1] + gap_ms:
                begin_ms, _, count = sessions[-1]
                sessions[-1] = [begin_ms, at_ms, count + 1]
            else:
                sessions.append([at_ms, at_ms, 1])
            placed.setdefault(key, []).append((sessions[-1][0], sessions[-1][2]))
        if sessions[-1][1] + gap_ms > reached_ms:
            sessions.pop()
        if sessions:
            ended[key] = sessions
    return ended, placed


def _check_windows(
    kafka: KafkaSettings,
    topics: Sequence[str],
    counts: Mapping[str, Any],
    out: Events,
    _dead: Events,
) -> None:
    """Each window and each pair is out once, and so are events without another side."""
    windows, pairs = (_by_key(kafka, topic) for topic in topics)
    assert windows == {key: _windows(several) for key, several in out.items()}
    found = {key: sorted(several, key=str) for key, several in pairs.items()}
    assert found == {key: sorted(_pairs(several), key=str) for key, several in out.items()}
    alone = {at for several in found.values() for *both, _ in several for at in (0, 1)
             if both[at] is None}  # fmt: skip
    assert alone == {0, 1}
    assert counts["made"] >= sum(map(len, windows.values()))
    for record in read_output(kafka, topics[0]):
        # It is older than a timestamp may be.
        time_ms = int(record.header(EVENT_TIME_HEADER) or b"0")
        assert time_ms == json.loads(record.value or b"")["end_ms"] - 1


def _windows(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    size_ms = windowed_topology.SIZE_MS
    by_begin: dict[int, list[int]] = defaultdict(list)
    for one in events:
        by_begin[one["at"] - one["at"] % size_ms].append(one["n"])
    return [
        {
            "begin_ms": begin_ms,
            "end_ms": begin_ms + size_ms,
            "mean": float(Fraction(sum(numbers), len(numbers))),
            "count": len(numbers),
            "event_time_ms": begin_ms + size_ms - 1,
        }
        for begin_ms, numbers in sorted(by_begin.items())
    ]


def _pairs(events: Sequence[dict[str, Any]]) -> list[list[Any]]:
    found: list[list[Any]] = []
    lefts, rights = ([one for one in events if one["n"] % 2 == odd] for odd in (0, 1))
    joined = set()
    for left in lefts:
        for right in rights:
            if left["at"] <= right["at"] <= left["at"] + windowed_topology.WITHIN_MS:
                found.append([left["n"], right["n"], right["at"]])
                joined |= {left["n"], right["n"]}
    found += [[one["n"], None, one["at"]] for one in lefts if one["n"] not in joined]
    found += [[None, one["n"], one["at"]] for one in rights if one["n"] not in joined]
    return found


def _check_tasks(
    kafka: KafkaSettings,
    topics: Sequence[str],
    counts: Mapping[str, Any],
    out: Events,
    dead: Events,
) -> None:
    """Each event is counted once, each id passes once, and each silence is told once."""
    reached_ms = max(one["at"] for several in (*out.values(), *dead.values()) for one in several)
    counted, passed, silent = (_by_key(kafka, topic) for topic in topics)
    assert counted == {key: [*range(1, len(several) + 1)] for key, several in out.items()}
    quiet_ms = tasks_topology.QUIET_MS
    first: Events = defaultdict(list)
    last: Events = defaultdict(list)
    for key, several in out.items():
        had: set[int] = set()
        for one, following in pairwise([*several, {"at": reached_ms}]):
            if one["n"] % tasks_topology.IDS not in had:
                had.add(one["n"] % tasks_topology.IDS)
                first[key].append(one["n"])
            if following["at"] >= one["at"] + quiet_ms:
                had.clear()
                last[key].append(one["at"])
    assert passed == first
    assert silent == last
    assert len(first) < sum(map(len, first.values())) < sum(map(len, out.values()))
    assert counts["made"] >= sum(map(len, last.values())) > 0


JOBS: Final = {
    "sessions": KeyedJob(keyed_topology, ("SESSIONS_TOPIC",), _check_sessions),
    "groups": KeyedJob(keyed_topology, ("SESSIONS_TOPIC", "GROUPS_TOPIC"), _check_groups),
    "tasks": KeyedJob(tasks_topology, ("COUNTS_TOPIC", "IDS_TOPIC", "ALERTS_TOPIC"), _check_tasks),
    "windows": KeyedJob(windowed_topology, ("WINDOWS_TOPIC", "JOINS_TOPIC"), _check_windows),
}
