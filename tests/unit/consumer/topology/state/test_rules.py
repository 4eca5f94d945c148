"""What becomes of a row, rule by rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sequitur.consumer.topology.state import (
    NonTransactionalState,
    OpaqueState,
    SQLStore,
    State,
    StateConflictError,
    StateOvertakenError,
    Stored,
    TransactionalState,
)
from sequitur.consumer.topology.state.rules import after_update, after_withdrawal

if TYPE_CHECKING:
    from collections.abc import Callable

_STORE = SQLStore("sqlite:////nowhere/counts.db")
_TRANSACTIONAL = TransactionalState(_STORE, "counts")
_OPAQUE = OpaqueState(_STORE, "counts")
_PLAIN = NonTransactionalState(_STORE, "counts")
_ROW = Stored(10, 4, 2, 0)


def _adding(number: int) -> Callable[[int | None], int]:
    return lambda before: (before or 0) + number


@pytest.mark.parametrize(
    ("state", "stored", "txid", "expected"),
    [
        (_TRANSACTIONAL, None, 1, Stored(5, None, 1, 0)),
        (_TRANSACTIONAL, _ROW, 3, Stored(15, 10, 3, 0)),
        (_TRANSACTIONAL, _ROW, 2, _ROW),
        (_TRANSACTIONAL, _ROW, 9, Stored(15, 10, 9, 0)),
        (_OPAQUE, None, 1, Stored(5, None, 1, 0)),
        (_OPAQUE, _ROW, 3, Stored(15, 10, 3, 0)),
        (_OPAQUE, _ROW, 2, Stored(9, 4, 2, 0)),
        (_OPAQUE, Stored(10, None, 2, 0), 2, Stored(5, None, 2, 0)),
        (_OPAQUE, _ROW, 9, Stored(15, 10, 9, 0)),
        (_PLAIN, None, 1, Stored(5, None, 1, 0)),
        (_PLAIN, _ROW, 3, Stored(15, None, 3, 0)),
        (_PLAIN, _ROW, 2, Stored(15, None, 2, 0)),
        (_PLAIN, _ROW, 1, Stored(15, None, 1, 0)),
    ],
)
def test_row_after_an_update(
    state: State, stored: Stored | None, txid: int, expected: Stored
) -> None:
    """New transactions apply; repeats apply by the state's kind; ids may be skipped."""
    assert expected == after_update(state, "a", stored, _adding(5), txid=txid, task=0)


@pytest.mark.parametrize("state", [_TRANSACTIONAL, _OPAQUE])
def test_ids_do_not_go_back(state: State) -> None:
    """A row of a newer transaction is refused, with state and key by name."""
    with pytest.raises(StateOvertakenError, match="'counts', key 'a': transaction 2"):
        after_update(state, "a", _ROW, _adding(5), txid=1, task=0)


@pytest.mark.parametrize("state", [_TRANSACTIONAL, _OPAQUE])
def test_two_tasks_do_not_share_a_key(state: State) -> None:
    """A row that another task wrote in the same transaction is refused, and in an older one not."""
    with pytest.raises(StateConflictError, match="'counts', key 'a': tasks 0 and 3 both"):
        after_update(state, "a", _ROW, _adding(5), txid=2, task=3)
    assert after_update(state, "a", _ROW, _adding(5), txid=3, task=3) == Stored(15, 10, 3, 3)


def test_withdrawn_rows_are_as_before() -> None:
    """What the repeat leaves out goes back to its value before, and to nothing where it was new."""
    assert after_withdrawal(_ROW, 2) == Stored(4, 4, 1, 0)
    assert after_withdrawal(Stored(10, None, 2, 0), 2) is None
    assert after_withdrawal(_ROW, 3) == _ROW
