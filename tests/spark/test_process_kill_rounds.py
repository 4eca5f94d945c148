"""`kill -9` of the process job at any moment, while bolts fail: each event ends once, in order."""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from sequitur.base.copy_headers import DEAD_COMPONENT_HEADER
from sequitur.consumer.topology import ProcessSettings
from tests.spark.checkpoint_places import CheckpointPlace, disturb
from tests.spark.kill_rounds import Rounds
from tests.support.output_reading import read_output
from tests.support.s3_server import S3Server

if TYPE_CHECKING:
    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.slow]

_ROUNDS = int(os.environ.get("SEQUITUR_DRIVER_KILL_ROUNDS", "2"))
_SEED = int(os.environ.get("SEQUITUR_KILL_SEED", "5"))
_PROCESS = ProcessSettings.model_validate({"max_attempts": 2, "retry_delay": "20 ms"})
_TOPOLOGY = Path(__file__).with_name("failing_topology.py")


@pytest.mark.promise("process-bolt-fails-behind", "process-driver-killed-kill")
@pytest.mark.timeout(900 + 300 * _ROUNDS)
def test_killing_the_driver_of_a_topology_loses_and_doubles_nothing(
    broker: Broker, make_topic: MakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever it is killed, each event is out once and in order, or aside, or dead-lettered.

    So is each tuple that a bolt makes at ticks, and forgets.
    """
    monkeypatch.setenv("NUMBERS_TOPIC", made := make_topic())
    rounds = _rounds(broker, make_topic, CheckpointPlace.on_path(tmp_path / "checkpoint"))
    _outlived(rounds, _ROUNDS, made)


@pytest.mark.promise("order-checkpoint-s3-topology")
@pytest.mark.skipif(
    "SEQUITUR_DRIVER_KILL_ROUNDS" not in os.environ,
    reason="two lives of Spark more, a minute; make test-kill runs it",
)
@pytest.mark.timeout(900 + 300 * _ROUNDS)
def test_killing_the_driver_of_a_topology_on_s3_loses_and_doubles_nothing(
    broker: Broker, make_topic: MakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Likewise, while the server refuses requests, loses answers and is slow."""
    monkeypatch.setenv("NUMBERS_TOPIC", made := make_topic())
    with S3Server() as server:
        place = CheckpointPlace.on_s3(server, tmp_path / "spark")
        rounds = _rounds(broker, make_topic, place)
        rounds.disturb = lambda: disturb(server, rounds.random)
        _outlived(rounds, _ROUNDS, made)


def _rounds(broker: Broker, make_topic: MakeTopic, place: CheckpointPlace) -> Rounds:
    job = {"topology": _TOPOLOGY, "process": _PROCESS}
    topic = make_topic(partitions=4)
    servers = broker.bootstrap_servers
    return Rounds.on(servers, topic, place, Random(_SEED), job=job)


def _outlived(rounds: Rounds, lives: int, made: str) -> None:
    report = rounds.outlive(lives)
    dead_letters = _PROCESS.dead_letters(rounds.settings.output_topic)
    released, late, quarantined = rounds.check(report, (dead_letters,))
    counts = report["processed"]
    assert (counts["taken"], counts["pending"]) == (report["released"], 0)
    assert (counts["acked"], counts["dead"]) == (len(released), report["released"] - len(released))
    assert (len(late), len(quarantined)) == (report["late"], report["quarantined"])
    assert counts["dead"] > 0
    assert counts["failed"] > counts["dead"]
    _check_made(rounds, counts, made, dead_letters)


def _check_made(rounds: Rounds, counts: dict[str, int], made: str, dead_letters: str) -> None:
    """Of each task all its numbers are out, once and in order, but those that are dead letters."""
    dead = [
        json.loads(record.value or b"")
        for record in read_output(rounds.kafka, dead_letters)
        if record.header(DEAD_COMPONENT_HEADER) == b"numbers"
    ]
    records = read_output(rounds.kafka, made)
    assert (counts["made_acked"], counts["made_dead"]) == (len(records), len(dead))
    assert (counts["made"], counts["made_pending"]) == (len(records) + len(dead), 0)
    for task in range(4):
        out = [int(record.value or b"") for record in records if record.key == b"%d" % task]
        given_up = [one["number"] for one in dead if one["task"] == task]
        assert out == sorted(out)
        assert sorted([*out, *given_up]) == list(range(counts["made"] // 4))
        assert {number % 40 for number in given_up} == {7}
