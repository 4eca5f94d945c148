"""`kill -9` of a job with keyed state whose lives are on Spark and on this machine, in turns."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

import pytest

from tests.spark.checkpoint_places import CheckpointPlace
from tests.spark.kill_rounds import Rounds
from tests.support.dying_merges import die_in_a_merge
from tests.support.keyed_rounds import JOBS
from tests.support.local_job import LocalJob

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sequitur.consumer.reorder import ReorderSettings
    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker
    from tests.support.job_process import JobProcess

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.slow]

_ROUNDS: Final = 2 * int(os.environ.get("SEQUITUR_DRIVER_KILL_ROUNDS", "1"))
_SEED: Final = int(os.environ.get("SEQUITUR_KILL_SEED", "7"))


@dataclass
class _InTurns(Rounds):
    """Rounds whose lives are on Spark and on the local runner, in turns."""

    on_spark: Iterator[bool] = field(default_factory=lambda: itertools.cycle((True, False)))

    def _life(self, *flags: str, settings: ReorderSettings | None = None) -> JobProcess:
        if next(self.on_spark):
            return super()._life(*flags, settings=settings)
        return LocalJob(self.kafka, settings or self.settings, *flags, **self.job)


@pytest.mark.promise("keyed-killed", "keyed-runners", "windows-killed")
@pytest.mark.parametrize("kind", JOBS)
@pytest.mark.timeout(900 + 300 * _ROUNDS)
def test_state_and_timers_go_on_from_runner_to_runner(
    broker: Broker,
    make_topic: MakeTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """Each life is killed but the last. Outputs equal what is computed from the events alone."""
    keyed = JOBS[kind]
    topics = [make_topic() for _ in keyed.topics]
    for name, topic in zip(keyed.topics, topics, strict=True):
        monkeypatch.setenv(name, topic)
    place = CheckpointPlace.on_path(tmp_path / "checkpoint")
    topic = make_topic(partitions=4)
    rounds = _InTurns.on(broker.bootstrap_servers, topic, place, Random(_SEED), job=keyed.job)
    keyed.check_all(rounds, rounds.outlive(_ROUNDS), topics)


@pytest.mark.promise("keyed-killed", "keyed-runners")
@pytest.mark.timeout(900 + 300 * _ROUNDS)
def test_a_job_that_dies_in_a_merge_goes_on_from_runner_to_runner(
    broker: Broker, make_topic: MakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SESSIONS_TOPIC", ended := make_topic())
    monkeypatch.setenv("MERGE_WRITES", str(tmp_path / "writes"))
    keyed, topic = JOBS["sessions"], make_topic(partitions=4)
    place = CheckpointPlace.on_path(tmp_path / "checkpoint")
    rounds = _InTurns.on(broker.bootstrap_servers, topic, place, Random(_SEED), job=keyed.job)
    for _ in range(_ROUNDS):
        rounds.live_and_die(die_in_a_merge)
    keyed.check_all(rounds, rounds.finish(), [ended])
