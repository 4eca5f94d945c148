"""`kill -9` of a stream of a user's own, again and again: each row is in the topic once, in order.

The program is the one in `examples/`: no topology, no reorder job, and a session without settings.
`SEQUITUR_DRIVER_KILL_ROUNDS=20` runs as many rounds, and `SEQUITUR_KILL_SEED` at other moments.
"""

from __future__ import annotations

import itertools
import os
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.producer import KafkaSettings
from tests.spark.sink_lives import PARTITIONS, SinkLives

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.slow]

_ROUNDS = int(os.environ.get("SEQUITUR_DRIVER_KILL_ROUNDS", "2"))
_SEED = int(os.environ.get("SEQUITUR_KILL_SEED", "4"))
_TIMEOUT_S = 600 + 120 * _ROUNDS

_MOMENTS: Any = [
    SinkLives.while_rows_go_out,
    SinkLives.while_it_is_staged,
    SinkLives.when_it_is_done,
    SinkLives.while_it_starts,
    SinkLives.while_it_is_staged_only,
]


@pytest.mark.promise("sink-program-killed-kill")
@pytest.mark.timeout(_TIMEOUT_S)
def test_killing_a_stream_of_a_users_own_loses_doubles_and_disorders_nothing(
    broker: Broker, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Killed while it stages, sends and starts, and between two batches."""
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    lives = SinkLives(kafka, make_topic(partitions=PARTITIONS), tmp_path, Random(_SEED))
    for moment in itertools.islice(itertools.cycle(_MOMENTS), _ROUNDS):
        lives.live_and_die(moment)
    assert lives.cut_short > 0, "no life was ended in the middle of anything"
    lives.feed()
    lives.finish()
    lives.check()
