"""How often a transaction is tried, and when what is prepared is forgotten."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import TYPE_CHECKING

import pytest

from sequitur.consumer.topology import Bolt, TopologyBuilder
from sequitur.consumer.topology.engine.plan import plan
from sequitur.consumer.topology.settling.outcomes import RetryPolicy
from sequitur.consumer.topology.step.batch import emissions
from sequitur.consumer.topology.step.transaction_run import BatchFailedError, TransactionTries
from sequitur.consumer.topology.transactional.attempt import BatchFailure, Cause, TransactionAttempt
from sequitur.errors import TopologyError, TransactionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.consumer.topology import Tuple


_POLICY = RetryPolicy(max_attempts=5)


def _failed(cause: Cause = Cause.RAISED, *, may_have_committed: bool = False) -> BatchFailedError:
    failure = BatchFailure("bolt", cause, "cannot")
    return BatchFailedError([failure], may_have_committed=may_have_committed)


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
        is_untouched: bool = False,
    ) -> None:
        super().__init__("transaction 1", _POLICY)
        self._plans = {"process": list(processing), "commit": list(commit)}
        self._forgets = forgets
        self._is_untouched = is_untouched
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

    def settles_untouched(self, attempt: TransactionAttempt) -> bool:
        assert attempt.attempt_id == self._attempt
        self.done.append("settle")
        return self._is_untouched

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


@pytest.mark.promise("state-state-database-refuses")
def test_what_is_refused_behind_a_commit_without_an_answer_is_searched_for() -> None:
    """The database has nothing of it: else what it refuses would end the job at every start."""
    away = _failed(Cause.UNAVAILABLE, may_have_committed=True)
    tries = _Planned([None, None], [away, _failed(Cause.REFUSED), None], is_untouched=True)
    tries.carry_out()
    again = ["commit", "commit", "settle", "discard", "process", "commit"]
    assert tries.done == ["process", *again]


@pytest.mark.promise("state-state-database-refuses")
@pytest.mark.parametrize("is_untouched", [True, False])
def test_what_another_life_has_prepared_is_as_new_if_nothing_is_written(
    is_untouched: bool,
) -> None:
    tries = _Planned([None], [_failed(), None], is_untouched=is_untouched)
    tries.carry_out(0, may_have_committed=True)
    again = ["discard", "process"] if is_untouched else []
    assert tries.done == ["settle", "commit", *again, "commit"]


_LAST_STAGE, _LAST_TASK, _WAVES = 1023, 4095, 30_000


class _Pass(Bolt):
    fields = ("key", "value")

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        """Do nothing."""


def _chain(length: int) -> TopologyBuilder:
    """Return a topology of as many stages as it has bolts, and the spout's."""
    builder = TopologyBuilder("chain")
    builder.set_spout("b0")
    for number in range(1, length + 1):
        builder.set_bolt(f"b{number}", _Pass(), 2).fields_grouping(f"b{number - 1}", "key")
    return builder


@pytest.mark.promise("process-topology-024-stages")
def test_records_are_numbered_by_wave_then_stage_then_task() -> None:
    """The first of each is behind the last of the one before, in 63 bits."""
    tasks = [
        (wave, stage, task)
        for wave in (0, 1, 1000, _WAVES)
        for stage in (0, 1, 31, 32, _LAST_STAGE)
        for task in (0, 1, 1023, 1024, _LAST_TASK)
    ]
    firsts = [next(emissions(*one)) for one in tasks]
    assert all(before + 1_000_000 < after for before, after in pairwise(firsts))
    assert firsts[0] == 0
    assert firsts[-1] < 1 << 63
    assert list(islice(emissions(0, 0, 1), 2)) == [firsts[1], firsts[1] + 1]


@pytest.mark.promise("process-topology-024-stages")
def test_more_stages_than_have_numbers_are_refused_by_name() -> None:
    """Their records would stand in another order."""
    assert len(plan(_chain(_LAST_STAGE).build(), 3).stages) == _LAST_STAGE + 1
    with pytest.raises(TopologyError, match="'chain' has 1025 stages, more than 1024"):
        plan(_chain(_LAST_STAGE + 1).build(), 3)


@pytest.mark.promise("process-topology-024-stages")
def test_more_tasks_than_have_numbers_are_refused_by_name() -> None:
    """Their records would be taken for those of another stage."""
    topology = _chain(1).build()
    assert plan(topology, _LAST_TASK + 1).stages[0].tasks == _LAST_TASK + 1
    with pytest.raises(TopologyError, match="'b0' would have 4097 tasks, which is more than 4096"):
        plan(topology, _LAST_TASK + 2)
