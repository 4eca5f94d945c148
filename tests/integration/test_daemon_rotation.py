"""A container's log, through rotations, restarts of the container and kills of the daemon."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.daemon_process import read_partitions
from tests.support.held import held
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeTopic
    from tests.integration.conftest import StartDaemon
    from tests.support.brokers import Broker

_LIMIT_S = PATIENCE_S


class _ContainerLog:
    """`containers/app.log`, a link to `pod/0.log`, then to `pod/1.log`; lines are numbers."""

    def __init__(self, folder: Path) -> None:
        self.link = folder / "containers" / "app.log"
        self.link.parent.mkdir()
        (folder / "pod").mkdir()
        self._target = folder / "pod" / "0.log"
        self.written = 0
        self._hours_back = 0
        self._make_target()

    def write(self) -> None:
        with self._target.open("ab") as file:
            for _ in range(500):
                file.write(b"%d\n" % self.written)
                self.written += 1

    def rotate(self) -> None:
        """As logrotate; the machine's clock is set back an hour each time."""
        rotated = sorted(self._target.parent.glob(f"{self._target.name}.*"), reverse=True)
        for path in rotated:
            path.rename(path.with_suffix(f".{int(path.suffix[1:]) + 1}"))
        self._hours_back += 1
        at_s = time.time() - 3_600 * self._hours_back
        os.utime(self._target, (at_s, at_s))
        self._target.rename(self._target.with_name(f"{self._target.name}.1"))
        self._target.touch()

    def start_again(self, number: int) -> None:
        """The container is started again: another file, to which the link points."""
        self._target = self._target.with_name(f"{number}.log")
        self._make_target()

    def _make_target(self) -> None:
        self._target.touch()
        new = self.link.with_name("new")
        new.symlink_to(self._target)
        new.rename(self.link)


@pytest.mark.test_all
@pytest.mark.promise("in-file-followed-rotated")
def test_killing_it_between_rotations_loses_and_doubles_nothing(
    broker: Broker, make_topic: MakeTopic, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """Behind a link, with a clock that is set back, and a container that is started again."""
    topic = make_topic(partitions=1)
    log = _ContainerLog(tmp_path)
    words = ["--topic", topic, "--source", f"file:{log.link}", "--format", "text"]
    words += ["--name", "reader", "--rotate-wait", "200 ms"]

    def values() -> list[int]:
        (messages,) = read_partitions(broker.bootstrap_servers, topic)
        return [int(message.value()) for message in messages]

    def wait_for_all() -> None:
        end_s = time.monotonic() + _LIMIT_S
        while missing := sorted({*range(log.written)} - {*values()}):
            assert daemon.process.poll() is None, daemon.log
            assert time.monotonic() < end_s, f"lost: {missing[0]} to {missing[-1]}"
            time.sleep(0.05)

    log.write()
    for life in range(3):
        daemon = start_daemon(*words)
        log.write()
        wait_for_all()
        with held([daemon.process.pid]):
            for _ in range(2):
                log.write()
                log.rotate()
            log.write()
        if life:
            wait_for_all()
            log.rotate()
            log.write()
        with held([daemon.process.pid]):
            daemon.process.kill()
        daemon.kill()
        assert daemon.process.returncode == -9
        log.write()
        log.rotate()
        log.write()
        log.start_again(life + 1)
        log.write()
        log.rotate()
        log.write()
    start_daemon(*words, "--no-follow", "--on-lost-file", "fail").end()
    assert values() == list(range(log.written))
