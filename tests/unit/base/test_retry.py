"""Asking again: how often, how long, what is told, and when it is given up."""

from __future__ import annotations

import asyncio
import sys

import pytest

from sequitur.base.retry import Backoff, Retry, any_of
from tests.support.virtual_time import VirtualTimeLoop

_BACKOFF = Backoff(initial_ms=1_000, maximum_ms=4_000, jitter=0)
_passes = any_of(OSError)


class _World:
    """A clock, what is told, and something that fails until a moment."""

    def __init__(self, **more: object) -> None:
        self.now_s = 0.0
        self.asked: list[float] = []
        self.told: list[object] = []
        given: dict[str, object] = {
            "backoff": _BACKOFF,
            "wait": self._wait,
            "clock": lambda: self.now_s,
            "tell": lambda why, left_s: self.told.append((why, left_s)),
            "tell_over": self.told.append,
        }
        self.retry = Retry(**{**given, **more})  # type: ignore[arg-type]

    def _wait(self, seconds: float) -> bool:
        self.now_s += seconds
        return self.now_s >= 1_000

    def ask(self, until_s: float, error: Exception) -> float:
        def once() -> float:
            self.asked.append(self.now_s)
            if self.now_s < until_s:
                raise error
            return self.now_s

        return self.retry.run(once, _passes)


def test_pauses_grow_until_there_is_an_answer() -> None:
    world = _World()
    assert world.ask(9, OSError("away")) == 11
    assert world.asked == [0, 1, 3, 7, 11]


@pytest.mark.parametrize(
    ("more", "error", "asked"),
    [
        ({}, ValueError("for ever"), [0]),
        ({"patience_s": 0}, OSError("away"), [0]),
        ({"patience_s": 5}, OSError("away"), [0, 1, 3, 5]),
        ({"most": 3}, OSError("away"), [0, 1, 3]),
        ({"wait": lambda _: True}, OSError("away"), [0]),
    ],
)
def test_it_is_given_up(more: dict[str, object], error: Exception, asked: list[float]) -> None:
    world = _World(**more)
    with pytest.raises(type(error)):
        world.ask(1e9, error)
    assert world.asked == asked


def test_an_error_is_not_handled_any_more_when_it_is_asked_whether_it_passes() -> None:
    """Whatever else is raised then would refer to it, and some libraries keep what they raise."""
    handled: list[object] = []

    def look(*_: object) -> None:
        handled.append(sys.exc_info()[1])

    def wait(_pause_s: float) -> bool:
        look()
        return True

    def passes(error: Exception) -> str:
        look()
        return str(error)

    retry = Retry(wait=wait, tell=look)
    with pytest.raises(ZeroDivisionError) as raised:
        retry.run(lambda: 1 / 0, passes)
    assert handled == [None, None, None]
    assert raised.value.__context__ is None


def test_a_wait_is_told_of_now_and_then_and_that_it_is_over() -> None:
    world = _World(patience_s=100, told_after_s=2, told_each_s=6)
    world.ask(12, OSError("away"))
    assert world.told == [("away", 97), ("away", 89), 15]
    world.told.clear()
    world.ask(16, OSError("away"))
    assert world.told == []


def test_of_attempts_patience_begins_with_a_failure_and_anew_after_a_success() -> None:
    async def attempt() -> list[float]:
        loop, times = asyncio.get_running_loop(), []
        attempts = Retry(patience_s=2, backoff=_BACKOFF).attempts()
        await asyncio.sleep(50)
        begun_s = loop.time()
        for _ in range(2):
            for _ in range(2):
                await attempts.pause(OSError("away"))
                times.append(loop.time() - begun_s)
            with pytest.raises(OSError, match="away"):
                await attempts.pause(OSError("away"))
            attempts.succeed()
        return times

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(attempt()) == pytest.approx([1, 2, 3, 4])


def test_attempts_without_an_error_are_told_in_words() -> None:
    told: list[str] = []

    async def attempt() -> None:
        retry = Retry(most=2, backoff=_BACKOFF, tell=lambda why, _left_s: told.append(why))
        attempts = retry.attempts()
        await attempts.pause()
        with pytest.raises(TimeoutError):
            await attempts.pause()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(attempt())
    assert told == ["no answer yet"]


def test_in_an_event_loop_it_is_the_same() -> None:
    async def ask() -> list[float]:
        loop, asked = asyncio.get_running_loop(), []
        begun_s = loop.time()

        async def once() -> None:
            asked.append(loop.time() - begun_s)
            raise OSError("away")

        with pytest.raises(OSError, match="away"):
            await Retry(patience_s=5, backoff=_BACKOFF).run_async(once, _passes)
        return asked

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(ask()) == pytest.approx([0, 1, 3, 5])
