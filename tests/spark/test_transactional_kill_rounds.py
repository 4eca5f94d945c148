"""`kill -9` of driver, Python workers and PostgreSQL, while bolts fail: each batch counts once."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import psutil
import pytest

from sequitur.consumer.topology import ProcessSettings
from tests.spark.checkpoint_places import CheckpointPlace
from tests.spark.kill_rounds import Rounds
from tests.spark.word_rounds import check_words
from tests.support.postgres import PostgresServer

if TYPE_CHECKING:
    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker
    from tests.support.job_process import JobProcess

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.slow, pytest.mark.one_process]

_ROUNDS = int(os.environ.get("SEQUITUR_DRIVER_KILL_ROUNDS", "3"))
_SEED = int(os.environ.get("SEQUITUR_KILL_SEED", "5"))
_EVENTS = int(os.environ.get("SEQUITUR_KILL_EVENTS", "2000"))
"""New events in each life, before further ones that come with each kill; each has ten words."""
_ROWS_A_BATCH = _EVENTS // 5
_KILLS_A_LIFE = 3
_PROCESS = ProcessSettings.model_validate(
    {"max_attempts": 6, "retry_delay": "20 ms", "max_batches_pending": 2}
)
_TOPOLOGY = Path(__file__).with_name("failing_words.py")
_logger = logging.getLogger(__name__)
_STEP_S = 0.8
_AWAY_S = 1.5


@dataclass
class _Killings:
    """What is killed while a job runs, each at a random moment of a step."""

    rounds: Rounds
    server: PostgresServer
    random: Random

    def one_life(self) -> None:
        """A worker and the database are killed, it goes on, and then the driver is killed."""
        with self.rounds._life() as life:
            self.rounds.feed(_EVENTS)
            assert next(life.steps(), None) is not None, life.complaints()
            for kill in self.random.sample([self._kill_a_worker, self._kill_the_database], 2):
                self._wait_in_a_step(life)
                kill(life)
                self._wait_for_a_step(life)
            self._kill_the_driver(life)
            life.kill()
        self.rounds.cut_short += self.rounds._is_in_a_step()
        prepared = sorted(self.rounds.place.ours.names("prepared"))
        _logger.info("killed in step %s, prepared: %s", self.rounds._newest("frontier"), prepared)

    def _wait_in_a_step(self, life: JobProcess) -> None:
        self.rounds.feed(_ROWS_A_BATCH)
        self.rounds._wait_for(life, self.rounds._is_logged)
        # Nothing is claimed of the moment.
        time.sleep(self.random.uniform(0, _STEP_S))

    def _wait_for_a_step(self, life: JobProcess) -> None:
        done = self.rounds._newest("done")
        self.rounds.feed(_ROWS_A_BATCH)
        self.rounds._wait_for(life, lambda: self.rounds._newest("done") != done)

    def _kill_the_driver(self, life: JobProcess) -> None:
        self._wait_in_a_step(life)
        phase = self.random.choice([self.rounds._is_logged, self._is_prepared])
        self.rounds._kill_when(life, phase)

    def _is_prepared(self) -> bool:
        """Whether a step is in its commit phase, or its outputs go out."""
        return self.rounds._is_logged() and bool(self.rounds.place.ours.names("prepared"))

    def _kill_a_worker(self, life: JobProcess) -> None:
        found: list[psutil.Process] = []

        def is_found() -> bool:
            found[:] = _workers(life.pid)
            return bool(found)

        self.rounds._wait_for(life, is_found)
        self.random.choice(found).kill()

    def _kill_the_database(self, _life: JobProcess) -> None:
        self.server.kill()
        time.sleep(self.random.uniform(0, _AWAY_S))
        self.server.start()


@pytest.mark.promise("state-driver-python-worker")
@pytest.mark.timeout(600 + 180 * _ROUNDS)
def test_killing_anything_counts_each_word_once(
    broker: Broker, make_topic: MakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts are those of what was acked, buckets fit them, and each batch is out once."""
    topic, words, buckets = make_topic(partitions=4), make_topic(), make_topic()
    monkeypatch.setenv("WORD_TOPIC", words)
    monkeypatch.setenv("BUCKET_TOPIC", buckets)
    random = Random(_SEED)
    with PostgresServer() as server:
        monkeypatch.setenv("STATE_URL", server.url())
        rounds = Rounds.on(
            broker.bootstrap_servers,
            topic,
            CheckpointPlace.on_path(tmp_path / "checkpoint"),
            random,
            job={"topology": _TOPOLOGY, "process": _PROCESS},
        )
        rounds.settings = rounds.settings.model_copy(
            update={"max_offsets_per_trigger": _ROWS_A_BATCH}
        )
        killings = _Killings(rounds, server, random)
        for _ in range(0, _ROUNDS, _KILLS_A_LIFE):
            killings.one_life()
        report = rounds.finish()
        assert rounds.cut_short > 0, "no life was ended in the middle of anything"
        check_words(rounds, report, url=server.url(), words=words, buckets=buckets)


def _workers(job: int) -> list[psutil.Process]:
    """The processes that run tasks: forks of Spark's Python daemon."""
    found = []
    for process in psutil.Process(job).children(recursive=True):
        try:
            is_daemon = any("python_daemon" in word for word in process.cmdline())
            parent = process.parent()
            is_fork = parent is not None and process.cmdline() == parent.cmdline()
        except psutil.NoSuchProcess:
            continue
        if is_daemon and is_fork:
            found.append(process)
    return found
