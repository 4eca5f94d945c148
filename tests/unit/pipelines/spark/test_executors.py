"""What a job without an executor says, and when it no longer waits for one."""

from __future__ import annotations

import pytest

from sequitur.pipelines.spark.executors import Shortage, asked_of


def _lines(shortage: Shortage, seconds: range, *, is_short: bool = True) -> dict[int, str]:
    looks = {s: shortage.look(s, is_short=is_short, is_stopping=False) for s in seconds}
    assert not any(verdict.gives_up for verdict in looks.values())
    return {s: verdict.line for s, verdict in looks.items() if verdict.line is not None}


def test_it_is_told_after_ten_seconds_and_each_minute_until_it_ends() -> None:
    """And that it has ended, if it was told; then it begins anew."""
    shortage = Shortage("4 asked")
    said = "no executor yet: 0 cores granted, 4 asked: is there room on the cluster?"
    assert _lines(shortage, range(140)) == {10: said, 70: said, 130: said}
    assert _lines(shortage, range(140, 145), is_short=False) == {
        140: "executors are there, after 140 s"
    }
    assert _lines(shortage, range(145, 150)) == {}
    assert _lines(shortage, range(150, 155), is_short=False) == {}
    assert _lines(shortage, range(155, 200)) == {165: said}


def test_a_job_that_is_to_end_gives_an_executor_two_seconds_more() -> None:
    """One may be about to come; and one that is there ends its work."""
    shortage = Shortage("4 asked")

    def gives_up(now_s: float, *, is_short: bool = True, is_stopping: bool = True) -> bool:
        return shortage.look(now_s, is_short=is_short, is_stopping=is_stopping).gives_up

    assert not gives_up(0, is_stopping=False)
    assert not gives_up(100)
    assert not gives_up(101.9)
    assert gives_up(102)
    assert gives_up(102.5)
    assert not gives_up(103, is_short=False)
    assert not gives_up(104)
    assert gives_up(106)


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ({}, "all there are asked, 1g of memory for each executor"),
        (
            {"spark.cores.max": "6", "spark.executor.memory": "3g", "spark.executor.cores": "2"},
            "6 asked, 3g of memory and 2 cores for each executor",
        ),
        (
            {"spark.executor.instances": "4", "spark.executor.cores": "2"},
            "8 asked, 1g of memory and 2 cores for each executor",
        ),
        ({"spark.executor.instances": "4"}, "4 asked, 1g of memory for each executor"),
    ],
)
def test_what_was_asked_for_is_told(settings: dict[str, str], asked: str) -> None:
    """As a cluster without room can be compared with."""
    assert asked_of(settings) == asked
