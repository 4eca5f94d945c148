"""Journals that were copied, put back, or used without Kafka: nothing lost, nothing twice."""

from __future__ import annotations

import shutil
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tests.support.daemon_process import read_partitions
from tests.support.sending_process import SendingProcess, wait_for_any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker

pytestmark = [pytest.mark.kill, pytest.mark.slow, pytest.mark.own_broker]

_PARTITIONS = 2
_ALL = 400
_ENDLESS = 1_000_000


class Lives:
    """Processes that send to one topic, and what the topic must hold in the end."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.broker = broker
        self.topic = topic
        self._lives: list[SendingProcess] = []

    def begin(self, journal: Path, life: str, count: int = _ALL) -> SendingProcess:
        process = SendingProcess(self.broker.bootstrap_servers, self.topic, journal, life, count)
        self._lives.append(process)
        return process

    def run(self, journal: Path, life: str) -> None:
        process = self.begin(journal, life)
        process.wait_for(lambda it: bool(it.end))
        process.close()
        assert process.end == "done"

    def leave_a_doubt(self, journal: Path, life: str) -> SendingProcess:
        """A life that is stopped with batches on disk that have no answer."""
        process = self.begin(journal, life, _ENDLESS)
        process.wait_for(lambda it: len(it.places) > _ALL)
        self.broker.pause()
        answered = len(process.places)
        process.wait_for(lambda it: it.journaled > answered + _ALL)
        process.freeze()
        return process

    def check(self, *, also_lost: frozenset[str] = frozenset()) -> None:
        """Each event is there once, in its order, where it was said to be.

        Args:
            also_lost: Those that only a journal held that is gone.
        """
        partitions = read_partitions(self.broker.bootstrap_servers, self.topic)
        logs = [[message.value().decode() for message in log] for log in partitions]
        found = [value for log in logs for value in log]
        lost = {value for life in self._lives for value in life.values()} - set(found) - also_lost
        disorders = sum(
            int(a) >= int(b)
            for life in self._lives
            for log in logs
            for a, b in pairwise(v.split(":")[1] for v in log if v.startswith(f"{life.life}:"))
        )
        assert (len(lost), len(found) - len(set(found)), disorders) == (0, 0, 0)
        for life in self._lives:
            for value, (partition, offset) in life.places.items():
                assert value in logs[partition]
                assert offset is None or logs[partition][offset] == value

    def end(self) -> None:
        for life in self._lives:
            life.kill()


@pytest.fixture
def lives(broker: Broker, make_topic: MakeTopic) -> Iterator[Lives]:
    """No life yet; the broker is left running."""
    lives = Lives(broker, make_topic(partitions=_PARTITIONS))
    yield lives
    lives.end()
    broker.start()


@pytest.mark.promise("in-journal-restored-copy")
def test_a_journal_put_back_from_a_copy_loses_and_doubles_nothing(
    lives: Lives, tmp_path: Path
) -> None:
    """The copy has batches without an answer, and knows nothing of what was sent after it."""
    journal, copy = tmp_path / "journal", tmp_path / "copy"
    original = lives.leave_a_doubt(journal, "original")
    shutil.copytree(journal, copy)
    copied = original.journaled
    original.thaw()
    lives.broker.resume()
    original.wait_for(lambda it: len(it.places) > copied + _ALL)
    original.kill()
    shutil.rmtree(journal)
    copy.rename(journal)
    lives.run(journal, "restored")
    # What the original had on disk only, and not in the copy, went with its disk.
    gone = frozenset(original.values()[copied:]) - original.places.keys()
    lives.check(also_lost=gone)


@pytest.mark.promise("in-processes-run-copies")
def test_two_hosts_on_copies_lose_and_double_nothing(lives: Lives, tmp_path: Path) -> None:
    """Both send what the journal held, and events of their own, until one is refused by name."""
    journal, copy = tmp_path / "journal", tmp_path / "copy"
    lives.leave_a_doubt(journal, "first").kill()
    shutil.copytree(journal, copy)
    hosts = [lives.begin(journal, "one", _ENDLESS), lives.begin(copy, "other", _ENDLESS)]
    lives.broker.resume()
    wait_for_any(hosts, lambda it: bool(it.end))
    (refused,) = [host for host in hosts if host.end]
    (holder,) = [host for host in hosts if not host.end]
    assert "another process has taken over this name" in refused.end
    known = len(holder.places)
    holder.wait_for(lambda it: len(it.places) > known + _ALL)
    holder.kill()
    lives.run(journal if holder is hosts[0] else copy, "last")
    # The journal of the refused host still holds what was not sent.
    lives.check(also_lost=frozenset(refused.values()) - refused.places.keys())


@pytest.mark.promise("in-lives-begin-killed")
def test_lives_that_were_killed_while_kafka_was_away_lose_and_double_nothing(
    lives: Lives, tmp_path: Path
) -> None:
    """Each begins without Kafka, with what the ones before it left; the last one has it back."""
    journal = tmp_path / "journal"
    lives.leave_a_doubt(journal, "first").kill()
    lives.broker.kill()
    for number in range(3):
        life = lives.begin(journal, f"away{number}", _ENDLESS)
        life.wait_for(lambda it: it.journaled >= _ALL)
        life.kill()
    last = lives.begin(journal, "last")
    last.wait_for(lambda it: it.journaled == _ALL)
    lives.broker.start()
    last.wait_for(lambda it: bool(it.end))
    assert last.end == "done"
    lives.check()
