"""`kill -9` of the reorder job at any moment, again and again: the output holds each event once.

`SEQUITUR_DRIVER_KILL_ROUNDS=20` runs as many rounds as the project promises to outlive, and
`SEQUITUR_KILL_SEED` chooses other moments than the usual ones.
"""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING

import pytest

from sequitur.consumer import ReorderSettings
from sequitur.producer import KafkaSettings
from tests.spark.kill_rounds import ROWS_A_BATCH, Rounds

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.slow]

_ROUNDS = int(os.environ.get("SEQUITUR_DRIVER_KILL_ROUNDS", "4"))
_SEED = int(os.environ.get("SEQUITUR_KILL_SEED", "4"))
_TIMEOUT_S = 300 + 120 * _ROUNDS


@pytest.fixture
def rounds(broker: Broker, make_topic: MakeTopic, tmp_path: Path) -> Rounds:
    """A topic of four partitions and the job before it."""
    topic = make_topic(partitions=4)
    settings = ReorderSettings.model_validate(
        {
            "input_topics": [topic],
            "output_topic": f"{topic}.ordered",
            "event_time": "json:at",
            "delay": "1 s",
            "idle_timeout": "1 h",  # a job that is dead for long must not call its rows late
            "checkpoint": str(tmp_path / "checkpoint"),
            "max_offsets_per_trigger": ROWS_A_BATCH,
        }
    )
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    return Rounds(kafka, settings, Random(_SEED))


@pytest.mark.timeout(_TIMEOUT_S)
def test_killing_the_driver_loses_doubles_and_disorders_nothing(rounds: Rounds) -> None:
    """Killed in a step, between two and while it starts, the job accounts for each event once."""
    report = rounds.outlive(_ROUNDS)
    released, late, quarantined = rounds.check(report)
    counted = (report["released"], report["late"], report["quarantined"])
    assert (len(released), len(late), len(quarantined)) == counted
    assert quarantined
