"""`kill -9` of the process job at any moment, while bolts fail: each event ends once, in order."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from sequitur.consumer.topology import ProcessSettings
from tests.spark.checkpoint_places import CheckpointPlace, disturb
from tests.spark.kill_rounds import Rounds
from tests.support.s3_server import S3Server

if TYPE_CHECKING:
    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.slow]

_ROUNDS = int(os.environ.get("SEQUITUR_DRIVER_KILL_ROUNDS", "2"))
_SEED = int(os.environ.get("SEQUITUR_KILL_SEED", "5"))
_PROCESS = ProcessSettings.model_validate({"max_attempts": 2, "retry_delay": "20 ms"})
_TOPOLOGY = Path(__file__).with_name("failing_topology.py")


@pytest.mark.timeout(300 + 120 * _ROUNDS)
def test_killing_the_driver_of_a_topology_loses_and_doubles_nothing(
    broker: Broker, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Whenever it is killed, each event is out once and in order, or aside, or dead-lettered."""
    rounds = _rounds(broker, make_topic, CheckpointPlace.on_path(tmp_path / "checkpoint"))
    _outlived(rounds, _ROUNDS)


@pytest.mark.skipif(
    "SEQUITUR_DRIVER_KILL_ROUNDS" not in os.environ,
    reason="two lives of Spark more, a minute; make test-kill runs it",
)
@pytest.mark.timeout(300 + 120 * _ROUNDS)
def test_killing_the_driver_of_a_topology_on_s3_loses_and_doubles_nothing(
    broker: Broker, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Likewise, while the server refuses requests, loses answers and is slow."""
    with S3Server() as server:
        place = CheckpointPlace.on_s3(server, tmp_path / "spark")
        rounds = _rounds(broker, make_topic, place)
        rounds.disturb = lambda: disturb(server, rounds.random)
        _outlived(rounds, _ROUNDS)


def _rounds(broker: Broker, make_topic: MakeTopic, place: CheckpointPlace) -> Rounds:
    job = {"topology": _TOPOLOGY, "process": _PROCESS}
    topic = make_topic(partitions=4)
    servers = broker.bootstrap_servers
    return Rounds.on(servers, topic, place, Random(_SEED), job=job)


def _outlived(rounds: Rounds, lives: int) -> None:
    report = rounds.outlive(lives)
    dead_letters = _PROCESS.dead_letters(rounds.settings.output_topic)
    released, late, quarantined = rounds.check(report, (dead_letters,))
    counts = report["processed"]
    assert (counts["taken"], counts["pending"]) == (report["released"], 0)
    assert (counts["acked"], counts["dead"]) == (len(released), report["released"] - len(released))
    assert (len(late), len(quarantined)) == (report["late"], report["quarantined"])
    assert counts["dead"] > 0
    assert counts["failed"] > counts["dead"]
