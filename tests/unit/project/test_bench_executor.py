"""The executor's benchmark measures what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import executor as bench
from sequitur.consumer.topology.engine.executor import Executor

if TYPE_CHECKING:
    from sequitur.consumer.topology.settling.root import Root

pytestmark = pytest.mark.figures


@pytest.mark.parametrize("is_tracked", [True, False])
def test_every_event_goes_through_the_chain(
    monkeypatch: pytest.MonkeyPatch, *, is_tracked: bool
) -> None:
    """Each round gives out all events, tracked or not, and takes time for each."""
    fed: list[bool] = []
    feed = Executor.feed

    def counted(executor: Executor, root: Root, values: tuple[Any, ...]) -> None:
        fed.append(root.is_tracked)
        feed(executor, root, values)

    monkeypatch.setattr(Executor, "feed", counted)
    assert bench.seconds_an_event(30, is_tracked=is_tracked) > 0
    assert fed
    assert set(fed) == {is_tracked}
    assert len(fed) % 30 == 0


def test_lost_event_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """No figure comes of a chain that does not put out what it is given."""
    monkeypatch.setattr(Executor, "feed", lambda *_: None)
    with pytest.raises(RuntimeError, match="0 acked, 0 written, 30 given"):
        bench.seconds_an_event(30, is_tracked=True)
