"""`kill -9` of the reorder job at any moment, again and again: the output holds each event once.

`SEQUITUR_DRIVER_KILL_ROUNDS=20` runs as many rounds as the project promises to outlive, and
`SEQUITUR_KILL_SEED` chooses other moments than the usual ones.
"""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.spark.checkpoint_places import CheckpointPlace, disturb
from tests.spark.kill_rounds import Rounds
from tests.support.s3_server import S3Server

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.slow]

_ROUNDS = int(os.environ.get("SEQUITUR_DRIVER_KILL_ROUNDS", "3"))
_S3_ROUNDS = int(os.environ.get("SEQUITUR_DRIVER_KILL_ROUNDS", "0"))
"""Besides those in which one life takes over from another, a fourth as many and at least one."""
_SEED = int(os.environ.get("SEQUITUR_KILL_SEED", "4"))
_TIMEOUT_S = 600 + 120 * _ROUNDS


@pytest.fixture
def make_rounds(broker: Broker, make_topic: MakeTopic) -> Callable[[CheckpointPlace], Rounds]:
    """Makes a topic of four partitions and the job before it, with its checkpoint in a place."""

    def make(place: CheckpointPlace) -> Rounds:
        topic = make_topic(partitions=4)
        return Rounds.on(broker.bootstrap_servers, topic, place, Random(_SEED))

    return make


@pytest.mark.promise("order-driver-killed-kill")
@pytest.mark.timeout(_TIMEOUT_S)
def test_killing_the_driver_loses_doubles_and_disorders_nothing(
    make_rounds: Callable[[CheckpointPlace], Rounds], tmp_path: Path
) -> None:
    """Killed in a step, between two and while it starts, the job accounts for each event once."""
    _outlived(make_rounds(CheckpointPlace.on_path(tmp_path / "checkpoint")), _ROUNDS)


@pytest.mark.promise("order-checkpoint-s3-topology")
@pytest.mark.timeout(_TIMEOUT_S)
def test_killing_drivers_of_a_checkpoint_on_s3_loses_doubles_and_disorders_nothing(
    make_rounds: Callable[[CheckpointPlace], Rounds], tmp_path: Path
) -> None:
    """Nor do two at once, while the server refuses requests, loses answers and is slow."""
    with S3Server() as server:
        rounds = make_rounds(CheckpointPlace.on_s3(server, tmp_path / "spark"))
        rounds.disturb = lambda: disturb(server, rounds.random)
        for _ in range(max(1, _S3_ROUNDS // 4)):
            rounds.overtake()
        _outlived(rounds, _S3_ROUNDS)


def _outlived(rounds: Rounds, lives: int) -> None:
    report = rounds.outlive(lives)
    released, late, quarantined = rounds.check(report)
    counted = (report["released"], report["late"], report["quarantined"])
    assert (len(released), len(late), len(quarantined)) == counted
    assert quarantined
