"""A transaction is tried until it is committed: which part of it again, and after how long."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from typing import TYPE_CHECKING, Generic, TypeVar

from sequitur.consumer.topology.step.transaction_run import BatchFailedError
from sequitur.consumer.topology.transactional.phase import Cause, Phase
from sequitur.errors import TransactionError

if TYPE_CHECKING:
    from sequitur.consumer.topology.settling.retry import RetryPolicy
    from sequitur.consumer.topology.transactional.attempt import TransactionAttempt

_Prepared = TypeVar("_Prepared")
_Committed = TypeVar("_Committed")
_COUNTED = (Cause.RAISED, Cause.REFUSED, Cause.DIED)
"""Causes that a try after the other may have for good: a bolt's own. What was asked for, and a
database that is away, pass. What a state refuses is searched for first."""


class TransactionTries(ABC, Generic[_Prepared, _Committed]):
    """Carries a transaction through.

    As long as no state can have been written, a batch that a bolt fails is processed anew, and may
    come to something else. From then on the same is committed again.
    """

    def __init__(self, name: str, policy: RetryPolicy) -> None:
        self._name = name
        self._policy = policy

    @abstractmethod
    def new_attempt(self) -> TransactionAttempt:
        """Return the ids of another try; its attempt id is larger than all before."""

    @abstractmethod
    def process(
        self, attempt: TransactionAttempt, *, is_last: bool, tries_commit: bool
    ) -> _Prepared:
        """Run the processing phase, and leave what it came to where it outlasts this process."""

    @abstractmethod
    def commit(
        self, prepared: _Prepared, attempt: TransactionAttempt, *, is_new: bool
    ) -> _Committed:
        """Run the commit phase of what is prepared."""

    @abstractmethod
    def discard(self, prepared: _Prepared, attempt: TransactionAttempt) -> bool:
        """Forget what is prepared, if nothing of it was committed, and nothing will be."""

    @abstractmethod
    def wait(self, seconds: float, error: BatchFailedError) -> None:
        """Wait before the next try."""

    def carry_out(
        self, prepared: _Prepared | None = None, *, may_have_committed: bool = False
    ) -> tuple[_Prepared, _Committed]:
        """Try until it is committed."""
        failed, counted = Counter[Phase](), Counter[Phase]()
        tries_commit = False
        while True:
            attempt = self.new_attempt()
            phase = Phase.PROCESSING if prepared is None else Phase.COMMIT
            try:
                if prepared is None:
                    is_last = counted[phase] + 1 == self._policy.max_attempts
                    prepared = self.process(attempt, is_last=is_last, tries_commit=tries_commit)
                    failed[phase] = counted[phase] = 0
                    phase = Phase.COMMIT
                is_new = not may_have_committed
                return prepared, self.commit(prepared, attempt, is_new=is_new)
            except BatchFailedError as error:
                may_have_committed = may_have_committed or error.may_have_committed
                failed[phase] += 1
                is_first = error.cause is Cause.REFUSED and not (tries_commit or may_have_committed)
                tries_commit = tries_commit or is_first
                counted[phase] += error.cause in _COUNTED and not is_first
                if counted[phase] and counted[phase] == self._policy.max_attempts:
                    raise TransactionError(
                        f"{self._name} failed {counted[phase]} times, last in {error}"
                    ) from error
                if prepared is not None and not may_have_committed:
                    prepared = None if self.discard(prepared, attempt) else prepared
                self.wait(self._policy.retry_at_ms(failed[phase], 0, 0.5) / 1000, error)
