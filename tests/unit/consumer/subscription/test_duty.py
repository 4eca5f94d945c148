"""What is done every so often: when it is due, and what is told of it."""

from __future__ import annotations

import pytest

from sequitur.consumer.subscription.duty import Duty, ToldOnce


def test_work_is_done_when_it_is_due_also_after_it_has_failed() -> None:
    clock = iter((0.0, 0.0, 1.0, 2.0, 2.0, 3.9, 4.0, 4.0, 4.0, 5.9))
    done: list[str] = []
    told: list[str] = []

    def work() -> None:
        done.append("done")
        if len(done) == 2:
            raise ValueError("not now")

    duty = Duty(
        work,
        every_s=2,
        passes=(ValueError,),
        tell=lambda error: told.append(str(error)),
        clock=lambda: next(clock),
    )
    counts = []
    for _ in range(5):
        duty.run()
        counts.append(len(done))
    assert (counts, told) == ([1, 1, 2, 2, 3], ["not now"])
    duty.later()
    duty.run()
    assert len(done) == 3


def test_what_does_not_pass_ends_it() -> None:
    def work() -> None:
        raise KeyError("over")

    with pytest.raises(KeyError):
        Duty(work, every_s=1, passes=(ValueError,), tell=str).run()


def test_a_line_is_told_once_a_minute() -> None:
    clock = iter((0.0, 30.0, 59.0, 60.0, 60.0))
    lines: list[str] = []
    tell = ToldOnce(lines.append, lambda: next(clock))
    for line in ("same", "same", "same", "same", "other"):
        tell(line)
    assert lines == ["same", "same", "other"]
