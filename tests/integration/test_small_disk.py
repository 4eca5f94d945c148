"""A journal on a disk that is far smaller than its limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.test_kill_rounds import Rounds, make_rounds, rounds
from tests.support.small_disk import small_disk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["make_rounds", "rounds"]

pytestmark = [pytest.mark.kill, pytest.mark.slow, pytest.mark.own_broker]

_LIVES = 2
_LINES = 40_000


@pytest.fixture
def journal_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "journal", "4m") as place:
        yield place


@pytest.mark.promise("in-journal-disk-smaller")
@pytest.mark.usefixtures("journal_disk")
def test_killing_it_on_a_small_disk_loses_and_doubles_nothing(rounds: Rounds) -> None:
    """The disk fills while the broker is paused, the daemon dies, and all drains in order."""
    rounds.settings = ("--compression", "none", "--linger", "5 ms")
    rounds.live_and_die(while_loaded=True)
    for life in range(_LIVES):
        rounds.growing.grow(_LINES)
        rounds.broker.pause()
        with rounds.start() as daemon:
            rounds.recovered += daemon.wait_for("producer started")["recovered"]
            daemon.wait_for("no room in the journal: senders wait")
            if life % 2:  # it also gets going again by itself
                rounds.broker.resume()
                daemon.wait_for("there is room in the journal again")
            daemon.kill()
        rounds.broker.resume()
    rounds.finish()
    rounds.check()
