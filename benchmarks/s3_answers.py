"""How many answers of a store a step of the job waits for, one after the other."""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_OF_STEP: Final = re.compile(
    r"/(?:runs|behind|repeats|keys|staged|frontier|plans|done|prepared)/0*([0-9]+)"
)
_LISTED: Final = re.compile(r"[?&]prefix=.*(?:owners|plans)(?:%2F|/)")
"""Other folders are listed in order to delete what is in them."""
_OF_BATCH: Final = re.compile(r"/(?:offsets|commits)/([0-9]+)$")


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of a store.

    Attributes:
        method: What was asked, as `PUT`.
        path: Of what.
        began_s: When the request was there.
        ended_s: When it was answered.
    """

    method: str
    path: str
    began_s: float
    ended_s: float

    def writes(self, document: str) -> int | None:
        """Return the number of the step or batch, if it is one of these documents."""
        found = re.search(rf"/{document}/0*([0-9]+)$", self.path)
        return int(found[1]) if found and self.method == "PUT" else None


@dataclass(slots=True)
class _Step:
    number: int
    batch: int
    began_s: float
    ended_s: float = float("-inf")

    def may_wait_for(self, answer: Answer) -> bool:
        """Tell whether an answer is neither about deletions nor about what another step writes."""
        if answer.method == "DELETE" or "/heartbeats/" in answer.path:
            return False
        if "prefix=" in answer.path and not _LISTED.search(answer.path):
            return False
        if answer.method != "PUT":
            return True
        by_step, by_batch = _OF_STEP.search(answer.path), _OF_BATCH.search(answer.path)
        of_another_step = by_step is not None and int(by_step[1]) != self.number
        of_another_batch = by_batch is not None and int(by_batch[1]) != self.batch
        return not of_another_step and not of_another_batch


def answers_in_turn(answers: Sequence[Answer]) -> dict[int, int]:
    """Return for each step that runs a batch how many answers it waits for in turn, at most.

    Those are counted that come from the commit of the batch before it until the step is done. Steps
    overlap, and what a neighbour reads meanwhile cannot be told apart, so it counts, too.
    """
    asked = sorted(answers, key=lambda one: one.began_s)
    begins = [one.began_s for one in asked]
    found: dict[int, int] = {}
    for step in _steps(asked):
        first = bisect.bisect_left(begins, step.began_s)
        last = bisect.bisect_right(begins, step.ended_s)
        meant = (one for one in asked[first:last] if one.ended_s <= step.ended_s)
        found[step.number] = in_turn(one for one in meant if step.may_wait_for(one))
    return found


def in_turn(answers: Iterable[Answer]) -> int:
    """Return the most answers of which each begins when the one before it has ended."""
    count, ended_s = 0, float("-inf")
    for one in sorted(answers, key=lambda one: one.ended_s):
        if one.began_s >= ended_s:
            count, ended_s = count + 1, one.ended_s
    return count


def _steps(asked: Iterable[Answer]) -> list[_Step]:
    """Return the steps that are done: what is staged behind a plan is that batch's."""
    steps: dict[int, _Step] = {}
    batch, began_s, free_s = -1, 0.0, 0.0
    for one in asked:
        if (planned := one.writes("offsets")) is not None:
            batch, began_s = planned, min(one.began_s, free_s or one.began_s)
        elif one.writes("commits") is not None:
            free_s = one.ended_s
        elif (staged := one.writes("staged")) is not None:
            steps.setdefault(staged, _Step(staged, batch, began_s))
        elif (done := one.writes("done")) is not None and done in steps:
            steps[done].ended_s = one.ended_s
    return [step for step in steps.values() if step.ended_s > step.began_s]
