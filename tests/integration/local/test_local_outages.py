"""What a job on the local runner loses while it runs: its broker, its disk, its checkpoint."""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING, Final

import pytest

from tests.integration.local.kill_rounds import LocalRounds
from tests.spark.checkpoint_places import CheckpointPlace
from tests.support.small_disk import small_disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker

pytestmark = [pytest.mark.kill, pytest.mark.slow]

_SEED: Final = int(os.environ.get("SEQUITUR_KILL_SEED", "4"))
_BROKER_DEATHS: Final = 2
_FULL_DISKS: Final = 6


@pytest.fixture
def make_rounds(broker: Broker, make_topic: MakeTopic) -> Callable[[Path], LocalRounds]:
    """Makes a topic of four partitions and the job before it, with its checkpoint in a folder."""

    def make(folder: Path) -> LocalRounds:
        topic, place = make_topic(partitions=4), CheckpointPlace.on_path(folder)
        return LocalRounds.on(broker.bootstrap_servers, topic, place, Random(_SEED))

    return make


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "16m") as place:
        yield place


@pytest.mark.own_broker
@pytest.mark.promise("order-kafka-away-minutes")
def test_broker_that_is_killed_in_a_step_is_waited_for(
    make_rounds: Callable[[Path], LocalRounds], broker: Broker, tmp_path: Path
) -> None:
    """The same life goes on once it is back."""
    rounds = make_rounds(tmp_path / "checkpoint")
    rounds.check(rounds.outlive_broker(broker, _BROKER_DEATHS))
    assert rounds.cut_short == _BROKER_DEATHS


@pytest.mark.promise("order-batch-fit-checkpoint")
def test_disk_that_is_full_ends_the_job_and_the_next_start_goes_on(
    make_rounds: Callable[[Path], LocalRounds], disk: Path
) -> None:
    """Whichever file of a step has no room: its plan, its rows, or what becomes of them."""
    rounds = make_rounds(disk / "checkpoint")
    rounds.check(rounds.outlive_full_disk(disk, _FULL_DISKS))
    assert rounds.fell["between steps"] > 0, "there was room for each plan"
    assert len(rounds.fell) > 1, rounds.fell


@pytest.mark.promise("order-older-driver-goes")
@pytest.mark.parametrize("woken", [LocalRounds.wake_behind, LocalRounds.wake_before])
def test_driver_that_was_stopped_before_its_plan_ends_by_name(
    make_rounds: Callable[[Path], LocalRounds],
    tmp_path: Path,
    woken: Callable[[LocalRounds], None],
) -> None:
    """Another has taken over; whoever of the two plans first, the other runs that plan."""
    rounds = make_rounds(tmp_path / "checkpoint")
    woken(rounds)
    rounds.check(rounds.finish())
