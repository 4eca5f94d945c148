"""What passes by itself is waited for, as long as patience goes."""

from __future__ import annotations

import itertools

import pytest

from sequitur.base.retry import Outages


class _Away(Exception):  # noqa: N818 - it stands for many
    """Passes, or not."""


class _Rig:
    """Outages on a clock of their own; `stop_s` is when the job is asked to stop."""

    def __init__(self, patience_s: float = 100, restarts: int = 3, stop_s: float = 1e9) -> None:
        self.now_s = 0.0
        self.stop_s = stop_s
        self.lines: list[str] = []
        self.longest_s = 0.0
        self.outages = Outages(
            patience_s, restarts, wait=self._wait, tell=self.lines.append, clock=lambda: self.now_s
        )

    def _wait(self, seconds: float) -> bool:
        self.now_s += seconds
        self.longest_s = max(self.longest_s, self.outages.waiting_s)
        return self.now_s >= self.stop_s

    def ask(self, back_s: float, passes: str | None = "no leader") -> float:

        def once() -> float:
            if self.now_s < back_s:
                raise _Away
            return self.now_s

        return self.outages.outlast(once, lambda _: passes)


@pytest.mark.promise("order-kafka-away-minutes")
def test_it_asks_until_there_is_an_answer() -> None:
    """And says for whom it waits, how long yet, and that it is over; the metric follows."""
    rig = _Rig()
    assert 65 <= rig.ask(65) < 68
    assert rig.lines[0].startswith("waiting for Kafka, 98 s more at most: no leader")
    assert len(rig.lines) == 4
    assert rig.lines[-1].startswith("Kafka answers again, after 6")
    assert rig.longest_s >= 65
    assert rig.outages.waiting_s == 0


def test_a_moment_is_no_news() -> None:
    """A leader that moves is back before anybody reads of it."""
    rig = _Rig()
    rig.ask(0.5)
    assert rig.lines == []


@pytest.mark.parametrize(
    ("rig", "passes", "at_most_s"),
    [(_Rig(), "away", 103), (_Rig(stop_s=5), "away", 8), (_Rig(), None, 0)],
)
def test_it_gives_up(rig: _Rig, passes: str | None, at_most_s: float) -> None:
    """When patience is over, when the job is asked to stop, and at once what does not pass."""
    with pytest.raises(_Away):
        rig.ask(1e8, passes)
    assert rig.now_s <= at_most_s
    assert rig.outages.waiting_s == 0


def test_restarts_are_bounded_until_a_step_is_done() -> None:
    """With growing pauses; a step that is done gives all of them back."""
    rig = _Rig()
    times = []
    for _ in range(3):
        assert rig.outages.may_restart("why")
        times.append(rig.now_s)
    assert [after - before for before, after in itertools.pairwise([0.0, *times])] == [1, 2, 4]
    assert not rig.outages.may_restart("why")
    rig.outages.step_is_done()
    assert rig.outages.may_restart("why")
    assert rig.outages.restarted == 4
    assert rig.lines[0] == "the query restarts in 1 s (1 of 3 times without a step): why"


def test_a_stop_ends_the_pause_before_a_restart() -> None:
    assert not _Rig(stop_s=0.5).outages.may_restart("why")


def test_of_two_waits_the_longer_one_counts() -> None:
    """A step goes out while the next is staged: an answer to one ends no other's waiting."""
    rig = _Rig()
    found: list[float] = []

    def ask() -> None:
        if rig.now_s < 30:
            rig.ask(rig.now_s + 1)  # the other step's, answered soon
            found.append(rig.outages.waiting_s)
            raise _Away

    rig.outages.outlast(ask, lambda _: "no leader")
    assert found[-1] > 20
    assert rig.outages.waiting_s == 0
