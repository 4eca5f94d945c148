"""Whose a checkpoint is: who is refused at the start, and who may take over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from sequitur.base.process import ProcessIdentity
from sequitur.base.stored import dump
from sequitur.cli.main import app
from sequitur.errors import OwnershipError
from sequitur.pipelines.store import ownership
from sequitur.pipelines.store.ownership import Ownership, refuse_if_owned
from sequitur.pipelines.store.storage import LocalStorage
from tests.support.values import replace
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

_RACERS = 16
_OWNER = """
import sys, time
from pathlib import Path
from sequitur.pipelines.store.ownership import Ownership
from sequitur.pipelines.store.storage import LocalStorage
Ownership(LocalStorage(Path(sys.argv[1]))).take()
print("taken", flush=True)
time.sleep(600)
"""


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path)


@pytest.fixture
def no_watching(monkeypatch: pytest.MonkeyPatch) -> None:
    """What can be told at once is not waited for."""

    def watched(*_: object) -> None:
        raise AssertionError("there is nothing to wait for")

    monkeypatch.setattr(ownership, "_watched", watched)


def _owned_by(storage: LocalStorage, owner: ProcessIdentity, *, at_ms: int = 0) -> None:
    """As a driver leaves it that has taken the folder, and beaten once."""
    storage.make_folder("owners")
    storage.make_folder("heartbeats")
    storage.create("owners/000000000001", json.dumps(dump(owner)))
    _beat(storage, 1, at_ms)


def _beat(storage: LocalStorage, count: int, at_ms: int = 0) -> None:
    beat = {"count": count, "at_ms": at_ms, "is_over": False}
    storage.replace("heartbeats/000000000001", json.dumps(beat))


@pytest.mark.promise("order-second-job-started")
@pytest.mark.usefixtures("no_watching")
def test_second_is_refused_by_name_while_the_first_lives(storage: LocalStorage) -> None:
    """And may come once the first has let go."""
    first, second = Ownership(storage), Ownership(storage)
    first.take()
    own = ProcessIdentity.own()
    with pytest.raises(OwnershipError, match=f"{own}, has this checkpoint, last seen 0 s ago"):
        second.take()
    first.release()
    second.take()
    assert (first.generation, second.generation) == (1, 2)
    second.release()


@pytest.mark.promise("order-second-job-started")
@pytest.mark.usefixtures("no_watching")
def test_killed_process_is_told_at_once(storage: LocalStorage, tmp_path: Path) -> None:
    """A driver that was killed on this machine keeps nobody waiting."""
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "taken\n"
        with pytest.raises(OwnershipError, match=f"process {process.pid}, has this checkpoint"):
            refuse_if_owned(storage)
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        refuse_if_owned(storage)  # its parent has not asked yet what became of it
    refuse_if_owned(storage)


@pytest.mark.promise("order-second-job-started")
@pytest.mark.usefixtures("no_watching")
def test_process_id_that_was_given_again_is_nobody(storage: LocalStorage) -> None:
    own = ProcessIdentity.own()
    assert own.started is not None
    _owned_by(storage, replace(own, started=own.started - 1), at_ms=ownership._now_ms())
    refuse_if_owned(storage)


_ELSEWHERE = ProcessIdentity("other", 77, "another start of another machine", 5)


@pytest.mark.promise("order-second-job-started")
@pytest.mark.parametrize("clock_ms", [0, 1 << 50])
def test_heartbeat_of_another_machine_is_watched(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, clock_ms: int
) -> None:
    """While it moves, its process has the checkpoint, whatever that machine's clock says."""
    _owned_by(storage, _ELSEWHERE, at_ms=clock_ms)
    monkeypatch.setattr("time.sleep", lambda _: _beat(storage, 2, clock_ms))
    with pytest.raises(OwnershipError, match="host other, process 77, has this checkpoint"):
        refuse_if_owned(storage)


@pytest.mark.promise("order-second-job-started")
@pytest.mark.parametrize("owner", [_ELSEWHERE, ProcessIdentity.own()])
def test_heartbeat_that_stands_still_is_a_dead_process(
    storage: LocalStorage, owner: ProcessIdentity
) -> None:
    """Another machine's, or that of a process here that is paused: it is taken over."""
    _owned_by(storage, owner)
    ownership = Ownership(storage, stale_s=0.2)
    ownership.take()
    assert ownership.generation == 2
    ownership.release()


@pytest.mark.promise("order-second-job-started")
def test_one_of_many_that_start_at_once_has_it(storage: LocalStorage) -> None:
    begin = threading.Barrier(_RACERS)
    owners = [Ownership(storage) for _ in range(_RACERS)]

    def race(one: Ownership) -> bool:
        begin.wait()
        try:
            one.take()
        except OwnershipError:
            return False
        return True

    with ThreadPoolExecutor(_RACERS) as pool:
        won = list(pool.map(race, owners))
    assert sum(won) == 1
    owners[won.index(True)].check()
    for owner in owners:
        owner.release()


@pytest.mark.promise("order-second-job-started")
@pytest.mark.usefixtures("no_watching")
def test_of_two_that_found_no_owner_the_second_is_refused(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was about to take the generation that the first has taken meanwhile."""
    first, second, create = Ownership(storage), Ownership(storage), LocalStorage.create

    def create_behind_the_first(to: LocalStorage, name: str, text: str) -> bool:
        monkeypatch.setattr(LocalStorage, "create", create)
        first.take()
        return create(to, name, text)

    monkeypatch.setattr(LocalStorage, "create", create_behind_the_first)
    with pytest.raises(OwnershipError, match="has this checkpoint"):
        second.take()
    assert (first.generation, second.generation) == (1, 0)
    first.check()
    first.release()


@pytest.mark.promise("order-older-driver-goes")
def test_older_owner_learns_of_a_newer_one(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By itself, from its heartbeat's thread, also when it has nothing to log."""
    monkeypatch.setattr(ownership, "refuse_if_owned", lambda *_, **__: None)
    older, newer = Ownership(storage, beat_s=0.01), Ownership(storage)
    older.take()
    older.check()
    newer.take()
    older._thread.join(PATIENCE_S)
    assert older.is_lost
    with pytest.raises(OwnershipError, match="has taken this checkpoint over"):
        older.check()
    newer.check()
    older.release()
    newer.release()


def test_look_counts_while_nobody_can_have_taken_the_owner_for_dead(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a heartbeat's time in a store. An owner that was stopped or silent looks at once."""
    monkeypatch.setattr(ownership, "refuse_if_owned", lambda *_, **__: None)
    monkeypatch.setattr(ownership, "is_remote", lambda _: True)
    now_s = [0.0]
    older = Ownership(storage, beat_s=1.0, stale_s=5.0, steady_s=lambda: now_s[0])
    # Its heartbeats are those that the test makes.
    monkeypatch.setattr(older, "_thread", threading.Thread(target=lambda: None))
    older.take()

    def beats(until_s: int) -> None:
        while now_s[0] < until_s:
            now_s[0] += 1
            older._look()
            older._beat()

    def looks(monkeypatch: pytest.MonkeyPatch) -> bool:
        looked: list[str] = []
        with monkeypatch.context() as patch:
            patch.setattr(older, "_look", lambda: looked.append("owners"))
            older.check(may_know=True)
        return bool(looked)

    beats(9)
    assert looks(monkeypatch)
    beats(10)
    assert not looks(monkeypatch)
    now_s[0] += 0.9
    assert not looks(monkeypatch)
    now_s[0] += 0.2
    assert looks(monkeypatch)
    # It is stopped for a while: from then on its heartbeats have to be there as long as at first.
    now_s[0] = 14
    beats(24)
    assert looks(monkeypatch)
    beats(25)
    assert not looks(monkeypatch)
    # Its heartbeats are not answered, though its looks are.
    now_s[0] = 27.5
    older._look()
    assert looks(monkeypatch)
    newer = Ownership(storage, beat_s=60)
    newer.take()
    with pytest.raises(OwnershipError, match="has taken this checkpoint over"):
        older.check()
    with pytest.raises(OwnershipError, match="has taken this checkpoint over"):
        older.check(may_know=True)
    newer.release()


@pytest.mark.promise("order-second-job-started")
def test_job_on_a_checkpoint_in_use_is_refused_before_spark_starts(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def submitted(*_: object, **__: object) -> None:
        raise AssertionError("Spark is started")

    monkeypatch.setattr("sequitur.cli.jobs.run_spark_submit", submitted)
    owner = Ownership(storage)
    owner.take()
    flags = {"input-topics": "in", "output-topic": "out", "event-time": "json:at"}
    flags["bootstrap-servers"] = "127.0.0.1:1"
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    told = CliRunner().invoke(app, ["reorder", *words, "--checkpoint", str(tmp_path)])
    owner.release()
    assert isinstance(told.exception, OwnershipError)
    assert f"process {os.getpid()}, has this checkpoint" in str(told.exception)
