"""Lives that are killed meet each moment in each way that batches are staged."""

from __future__ import annotations

import itertools
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.local import kill_rounds
from tests.integration.local.kill_rounds import LocalRounds
from tests.spark.checkpoint_places import CheckpointPlace
from tests.spark.kill_rounds import Rounds
from tests.spark.subscription_rounds import SubscriptionRounds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sequitur.consumer.reorder import ReorderSettings


@pytest.mark.parametrize(
    ("kind", "live", "moments", "rounds"),
    [(Rounds, "live_and_die", 4, 8), (SubscriptionRounds, "live_and_lose", 9, 20)],
)
def test_each_moment_meets_each_way(
    monkeypatch: pytest.MonkeyPatch, kind: Any, live: str, moments: int, rounds: int
) -> None:
    """By what each life would end, and how it would stage its batches."""
    met: set[tuple[str, int]] = set()

    def end(life: Rounds, moment: Callable[..., Any]) -> None:
        life.cut_short += 1
        met.add((moment.__name__, life.ways[0]["small_batch_rows"]))

    monkeypatch.setattr(kind, live, end)
    monkeypatch.setattr(kind, "finish", lambda _: {})
    kind(kafka=None, settings=None, place=None, random=None).outlive(rounds)
    assert len({way for _, way in met}) == 2
    assert len(met) == 2 * moments


def test_on_this_machine_moment_and_way_are_drawn_each_for_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not in turns, which would tie one to the other."""
    ways: list[int] = []
    met: list[tuple[str, int]] = []

    def life(_: object, settings: ReorderSettings, **__: object) -> None:
        ways.append(settings.small_batch_rows)

    def end(rounds: LocalRounds, moment: Any) -> None:
        rounds._life()
        met.append((moment.keywords["moment"].__name__, ways[-1]))

    monkeypatch.setattr(kill_rounds, "LocalJob", life)
    monkeypatch.setattr(LocalRounds, "live_and_die", end)
    monkeypatch.setattr(LocalRounds, "finish", lambda _: {})
    place = CheckpointPlace.on_path(tmp_path)
    LocalRounds.on("broker:9092", "in", place, Random(4)).outlive(200)
    assert len({*met}) == 5 * 2
    assert len({*itertools.pairwise(met)}) > 5 * 2
