"""`kill -9` of a job with a subscription, again and again, and its checkpoint deleted.

Nothing acked comes again, nothing is lost, and what comes again is counted.
`SEQUITUR_DRIVER_KILL_ROUNDS=20` runs as many rounds as the project promises to outlive, and
`SEQUITUR_KILL_SEED` chooses other moments than the usual ones.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from sequitur.consumer.topology import ProcessSettings
from tests.spark.checkpoint_places import CheckpointPlace
from tests.spark.subscription_rounds import SubscriptionRounds

if TYPE_CHECKING:
    from sequitur.producer import KafkaSettings
    from tests.conftest import MakeTopic

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.slow]

_ROUNDS = int(os.environ.get("SEQUITUR_DRIVER_KILL_ROUNDS", "2"))
_TOPOLOGY_ROUNDS = int(os.environ.get("SEQUITUR_DRIVER_KILL_ROUNDS", "2"))
_SEED = int(os.environ.get("SEQUITUR_KILL_SEED", "6"))
_TIMEOUT_S = 600 + 120 * _ROUNDS
_TOPOLOGY = Path(__file__).with_name("failing_topology.py")
_PROCESS = ProcessSettings.model_validate({"max_attempts": 2, "retry_delay": "20 ms"})


@pytest.mark.promise("sub-job-killed-moment")
@pytest.mark.timeout(_TIMEOUT_S)
def test_killed_job_without_its_checkpoint_repeats_nothing_acked_and_loses_nothing(
    kafka: KafkaSettings, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Whenever it dies, what is acked is out and stays so; the rest comes, and is counted."""
    topic, place = make_topic(partitions=4), CheckpointPlace.on_path(tmp_path / "checkpoint")
    rounds = SubscriptionRounds.of(kafka, topic, place, Random(_SEED))
    rounds.account(rounds.outlive(_ROUNDS))
    assert any(death.is_lost for death in rounds.deaths)
    assert any(death.cursors for death in rounds.deaths)


@pytest.mark.promise("sub-job-killed-moment")
@pytest.mark.timeout(_TIMEOUT_S)
def test_killed_topology_without_its_checkpoint_repeats_nothing_acked_and_loses_nothing(
    kafka: KafkaSettings, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Likewise with events that wait for another attempt: those are not acked."""
    topic, place = make_topic(partitions=4), CheckpointPlace.on_path(tmp_path / "checkpoint")
    rounds = SubscriptionRounds.of(
        kafka,
        topic,
        place,
        Random(_SEED),
        job={"topology": _TOPOLOGY, "process": _PROCESS},
        more=(_PROCESS.dead_letters(f"{topic}.ordered"),),
    )
    rounds.account(rounds.outlive(_TOPOLOGY_ROUNDS))
    assert any(death.is_lost for death in rounds.deaths)
    assert any(death.cursors for death in rounds.deaths)
