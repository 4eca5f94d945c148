"""What the sessions of `keyed_topology` come to, computed from the events that came out."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sequitur.consumer.topology import ProcessSettings
from tests.spark import keyed_topology
from tests.support.output_reading import read_output

if TYPE_CHECKING:
    from sequitur.producer import KafkaSettings
    from tests.spark.kill_rounds import Rounds

PROCESS: Final = ProcessSettings.model_validate({"max_attempts": 2, "retry_delay": "20 ms"})
TOPOLOGY: Final = Path(keyed_topology.__file__)
JOB: Final[dict[str, Any]] = {"topology": TOPOLOGY, "process": PROCESS}


def check_sessions(rounds: Rounds, report: dict[str, Any], ended_topic: str) -> None:
    """Each event is out once and in order, and with its session; so is each session that ended."""
    dead_letters = PROCESS.dead_letters(rounds.settings.output_topic)
    rounds.check(report, (dead_letters,))
    counts = report["processed"]
    assert (counts["taken"], counts["pending"]) == (report["released"], 0)
    assert counts["dead"] > 0
    assert (counts["made"], counts["made_pending"]) == (counts["made_acked"], 0)
    by_key: dict[bytes | None, list[dict[str, Any]]] = defaultdict(list)
    for record in read_output(rounds.kafka, rounds.settings.output_topic):
        by_key[record.key].append(json.loads(record.value or b""))
    dead = [json.loads(one.value or b"") for one in read_output(rounds.kafka, dead_letters)]
    reached_ms = max(one["at"] for one in (*dead, *(one for own in by_key.values() for one in own)))
    wanted, placed = _sessions(by_key, reached_ms)
    said = {
        key: [(one["begin"], one["count"]) for one in several] for key, several in by_key.items()
    }
    assert said == placed
    assert _ended(rounds.kafka, ended_topic) == wanted
    # A timer that was called behind an event that then failed may be called for nothing.
    assert counts["made"] >= sum(map(len, wanted.values())) > 0


def _sessions(
    by_key: dict[bytes | None, list[dict[str, Any]]], reached_ms: int
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


def _ended(kafka: KafkaSettings, topic: str) -> dict[bytes | None, list[list[int]]]:
    found: dict[bytes | None, list[list[int]]] = defaultdict(list)
    for record in read_output(kafka, topic):
        found[record.key].append(json.loads(record.value or b""))
    return dict(found)
