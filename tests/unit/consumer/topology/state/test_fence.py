"""Which databases a task goes on with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sequitur.consumer.topology.state import (
    StateError,
    StateOvertakenError,
    StateOwnerError,
    Writer,
)
from sequitur.consumer.topology.state.fence import Found, check_fence, refusal
from sequitur.consumer.topology.transactional.attempt import TransactionAttempt


def _writer(txid: int = 5, attempt: int = 1, *, has_committed: bool = True) -> Writer:
    transaction = TransactionAttempt(txid, attempt)
    return Writer("words", "e1", "sum", 0, transaction, has_committed, batch="b1")


@pytest.mark.parametrize(
    ("writer", "found"),
    [
        (_writer(1, has_committed=False), Found(None, None, None)),
        (_writer(1, has_committed=False), Found("e1", None, None)),
        (_writer(9, has_committed=False), Found("e1", None, None)),  # came into a topology later
        (_writer(), Found("e1", 4, (4, 3))),
        (_writer(), Found("e1", 5, (4, 3))),
        (_writer(), Found("e1", 5, (5, 0), 0, "b1")),
        (_writer(), Found("e1", 5, (5, 1), 0, "b1")),
        (_writer(), Found("e1", 4, None)),  # a new task number
        (_writer(), Found("e1", 4, (2, 7))),  # a number that was away for a while
    ],
)
def test_goes_on(writer: Writer, found: Found) -> None:
    check_fence(writer, found, "the store")


@pytest.mark.parametrize(
    ("found", "error", "reason"),
    [
        (Found(None, None, None), StateOwnerError, "does not know topology 'words'.*was lost"),
        (Found("e2", 4, (4, 0)), StateOwnerError, "belongs to checkpoint 'e2'"),
        (Found("e1", None, None), StateOwnerError, "has no transaction.*was lost"),
        (Found("e1", 3, (3, 0)), StateOwnerError, "restored from a backup"),
        (Found("e1", 6, (4, 0)), StateOwnerError, "went back"),
        (Found("e1", 5, (5, 2), 0, "b1"), StateOvertakenError, "attempt 2 already: end this task"),
        (Found("e1", 4, (4, 0), 9), StateOvertakenError, "newer life of the job has taken over"),
        (Found("e1", 5, (5, 0), 0, "b0"), StateOwnerError, "another batch .* an older copy"),
    ],
)
def test_does_not_go_on(found: Found, error: type[StateError], reason: str) -> None:
    """With another database, another state of it, and beside a newer attempt."""
    with pytest.raises(error, match=reason):
        check_fence(_writer(), found, "the store")


@pytest.mark.promise("state-database-checkpoint-lost")
@pytest.mark.parametrize("own", [None, (3, 7)])
def test_database_of_a_time_between_the_commits_of_two_tasks(own: tuple[int, int] | None) -> None:
    """It has the newest transaction of the component, and lacks that of this task."""
    writer = replace(_writer(), has_task_committed=True)
    with pytest.raises(StateOwnerError, match=r"of task 0 .* restored from a backup"):
        check_fence(writer, Found("e1", 4, own), "the store")


@pytest.mark.parametrize("own", [(4, 3), (5, 1)])
def test_task_that_committed_the_transaction_before(own: tuple[int, int]) -> None:
    writer = replace(_writer(), has_task_committed=True)
    check_fence(writer, Found("e1", 5, own, 0, "b1"), "the store")


@pytest.mark.parametrize(
    ("found", "error"),
    [
        (Found(None, 4, (4, 0)), StateOwnerError),
        (Found("e2", 4, (4, 0)), StateOwnerError),
        (Found("e1", 5, (5, 2), 0, "b1"), StateOvertakenError),
        (Found("e1", 6, (6, 0)), StateOvertakenError),
        (Found("e1", 6, (4, 0)), StateOvertakenError),
        (Found("e1", 4, (4, 0), 9), StateOvertakenError),
        (Found("e1", 5, (5, 0), 0, "b0"), StateOwnerError),
    ],
)
def test_why_a_commit_was_refused(found: Found, error: type[StateError]) -> None:
    """Another owner, or a newer life."""
    assert type(refusal(_writer(), found, "the store")) is error
