"""How often a transaction is tried, and when what is prepared is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sequitur.consumer.topology import TransactionError
from sequitur.consumer.topology.settling.outcomes import RetryPolicy
from sequitur.consumer.topology.step.transaction_run import BatchFailedError, TransactionTries
from sequitur.consumer.topology.transactional.attempt import BatchFailure, Cause, TransactionAttempt

if TYPE_CHECKING:
    from collections.abc import Sequence

_POLICY = RetryPolicy(max_attempts=5)


def _failed(*, may_have_committed: bool = False) -> BatchFailedError:
    raised = BatchFailure("bolt", Cause.RAISED, "cannot")
    return BatchFailedError([raised], may_have_committed=may_have_committed)


class _Planned(TransactionTries[int, int]):
    """Does what a plan says: None goes well, an error fails.

    Attributes:
        done: What was asked of it, in order.
    """

    def __init__(
        self,
        processing: Sequence[BatchFailedError | None],
        commit: Sequence[BatchFailedError | None],
        *,
        forgets: bool = True,
    ) -> None:
        super().__init__("transaction 1", _POLICY)
        self._plans = {"process": list(processing), "commit": list(commit)}
        self._forgets = forgets
        self._attempt = 0
        self.done: list[str] = []

    def _do(self, what: str) -> int:
        self.done.append(what)
        error = self._plans[what].pop(0)
        if error is not None:
            raise error
        return self._attempt

    def new_attempt(self) -> TransactionAttempt:
        self._attempt += 1
        return TransactionAttempt(1, self._attempt)

    def process(self, attempt: TransactionAttempt, *, is_last: bool, tries_commit: bool) -> int:
        del attempt, tries_commit
        if is_last:
            self.done.append("last")
        return self._do("process")

    def commit(self, prepared: int, attempt: TransactionAttempt, *, is_new: bool) -> int:
        del prepared, attempt, is_new
        return self._do("commit")

    def discard(self, prepared: int, attempt: TransactionAttempt) -> bool:
        assert prepared <= attempt.attempt_id
        self.done.append("discard")
        return self._forgets

    def wait(self, seconds: float, error: BatchFailedError) -> None:
        del seconds, error


@pytest.mark.promise("state-bolt-raises-event")
def test_failures_are_counted_by_phase() -> None:
    """Four of the one and four of the other are not eight, and a phase that went well is over."""
    tries = _Planned([*[_failed()] * 4, *[None] * 5], [*[_failed()] * 4, None])
    tries.carry_out()
    assert tries.done.count("process") == 9
    assert tries.done.count("commit") == 5
    assert tries.done.count("last") == 1


def test_a_commit_that_always_fails_ends() -> None:
    """Though each processing phase between its tries goes well."""
    tries = _Planned([None] * 9, [_failed()] * 9)
    with pytest.raises(TransactionError, match="failed 5 times"):
        tries.carry_out()
    assert tries.done.count("commit") == 5


@pytest.mark.promise("state-older-life-older")
def test_what_cannot_be_forgotten_is_committed_again() -> None:
    """Somebody has committed some of it: nothing is processed again."""
    tries = _Planned([None], [_failed(), _failed(), None], forgets=False)
    tries.carry_out()
    assert tries.done == ["process", "commit", "discard", "commit", "discard", "commit"]


def test_what_may_be_committed_is_not_even_asked_for() -> None:
    tries = _Planned([None], [_failed(may_have_committed=True), _failed(), None])
    tries.carry_out()
    assert tries.done == ["process", "commit", "commit", "commit"]
