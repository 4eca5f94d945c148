"""`kill -9` of local jobs with keyed state, windows and joins, while calls fail: each is undone.

`SEQUITUR_DRIVER_KILL_ROUNDS=20` runs 80 rounds.
"""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.integration.local.kill_rounds import LocalRounds
from tests.spark.checkpoint_places import CheckpointPlace
from tests.support.dying_merges import die_in_a_merge
from tests.support.keyed_rounds import JOBS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker

pytestmark = [pytest.mark.kill, pytest.mark.slow]

_ROUNDS: Final = 4 * int(os.environ.get("SEQUITUR_DRIVER_KILL_ROUNDS", "2"))
_SEED: Final = int(os.environ.get("SEQUITUR_KILL_SEED", "6"))


class _Rounds(LocalRounds):
    """Rounds of a job that is hardly ever between two steps: what failed is tried again."""

    def outlive(self, rounds: int) -> dict[str, Any]:
        moments: tuple[Any, ...] = (
            _Rounds.in_a_step,
            _Rounds.while_rows_go_out,
            _Rounds.while_it_starts,
            _Rounds.at_any_time,
        )
        for number in range(rounds):
            self.live_and_die(moments[number % len(moments)])
        return self.finish()


@pytest.mark.promise("keyed-killed", "keyed-by-field", "windows-killed")
@pytest.mark.parametrize("kind", JOBS)
@pytest.mark.timeout(600 + 60 * _ROUNDS)
def test_killing_a_job_keeps_and_undoes_state_and_timers_of_each_key(
    broker: Broker,
    make_topic: MakeTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """Outputs equal what is computed from the events alone, each once."""
    keyed = JOBS[kind]
    topics = [make_topic() for _ in keyed.topics]
    for name, topic in zip(keyed.topics, topics, strict=True):
        monkeypatch.setenv(name, topic)
    place = CheckpointPlace.on_path(tmp_path / "checkpoint")
    topic = make_topic(partitions=4)
    servers = broker.bootstrap_servers
    rounds = _Rounds.on(servers, topic, place, Random(_SEED), job=keyed.job)
    keyed.check_all(rounds, rounds.outlive(_ROUNDS), topics)
    assert rounds.cut_short > 0


@pytest.mark.promise("keyed-killed")
@pytest.mark.timeout(600 + 60 * _ROUNDS)
def test_a_job_that_dies_at_any_write_of_a_merge_loses_nothing(
    broker: Broker, make_topic: MakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SESSIONS_TOPIC", ended := make_topic())
    monkeypatch.setenv("MERGE_WRITES", str(tmp_path / "writes"))
    place = CheckpointPlace.on_path(tmp_path / "checkpoint")
    keyed, topic = JOBS["sessions"], make_topic(partitions=4)
    servers = broker.bootstrap_servers
    rounds = _Rounds.on(servers, topic, place, Random(_SEED), job=keyed.job)
    for _ in range(_ROUNDS):
        rounds.live_and_die(die_in_a_merge)
    keyed.check_all(rounds, rounds.finish(), [ended])
