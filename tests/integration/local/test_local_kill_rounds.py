"""`kill -9` of the job on the local runner, again and again: the output holds each event once.

`SEQUITUR_DRIVER_KILL_ROUNDS=20` runs ten times as many rounds, since a life takes a tenth of one on
Spark; two jobs share them. `SEQUITUR_KILL_SEED` chooses other moments than the usual ones.
"""

from __future__ import annotations

import logging
import os
from random import Random
from typing import TYPE_CHECKING, Final

import pytest

from tests.integration.local.kill_rounds import LocalRounds
from tests.spark.checkpoint_places import CheckpointPlace

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker

pytestmark = [pytest.mark.kill, pytest.mark.slow]

_JOBS: Final = 2
_ROUNDS: Final = 10 // _JOBS * int(os.environ.get("SEQUITUR_DRIVER_KILL_ROUNDS", "4"))
_ENOUGH: Final = 20
"""So many rounds meet each kind of moment; of fewer, none may draw one."""
_SEED: Final = int(os.environ.get("SEQUITUR_KILL_SEED", "4"))
_logger = logging.getLogger(__name__)


@pytest.mark.promise("order-driver-killed-kill", "order-task-python-process")
@pytest.mark.timeout(600 + 60 * _ROUNDS)
@pytest.mark.parametrize("job", range(_JOBS))
def test_killing_the_driver_and_its_workers_loses_doubles_and_disorders_nothing(
    broker: Broker, make_topic: MakeTopic, tmp_path: Path, job: int
) -> None:
    """At any moment of a step and between two, whoever stages the rows."""
    place = CheckpointPlace.on_path(tmp_path / "checkpoint")
    topic = make_topic(partitions=4)
    rounds = LocalRounds.on(broker.bootstrap_servers, topic, place, Random(_SEED + job))
    report = rounds.outlive(_ROUNDS)
    released, late, quarantined = rounds.check(report)
    counted = (report["released"], report["late"], report["quarantined"])
    assert (len(released), len(late), len(quarantined)) == counted
    _logger.info(
        "%d rounds, %d events, %d workers killed at a task; the driver was killed while a step "
        "was: %s",
        *(_ROUNDS, rounds.sent, rounds.workers_killed, dict(rounds.fell)),
    )
    assert rounds.cut_short > 0
    if _ROUNDS >= _ENOUGH:
        assert rounds.cut_short > _ROUNDS // 4
        assert len(rounds.fell) > 2, rounds.fell
        assert rounds.workers_killed > 0
