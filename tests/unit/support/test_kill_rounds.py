"""Lives that are killed meet each moment in each way that batches are staged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.kill_rounds import Rounds
from tests.spark.subscription_rounds import SubscriptionRounds

if TYPE_CHECKING:
    from collections.abc import Callable


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
