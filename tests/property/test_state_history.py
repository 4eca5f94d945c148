"""States in a file, under random lives of the tasks that write them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from sequitur.consumer.topology.state import SQLStore
from tests.support.examples import examples
from tests.support.state_history import StateHistory

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.promise("state-commit-tried-already", "state-key-taken-transaction")
def test_each_transaction_counts_once(tmp_path: Path) -> None:
    """Whatever fails, is repeated or comes late: the rows are those of one attempt at each."""
    store = SQLStore(f"sqlite:///{tmp_path}/state.db")
    numbers = itertools.count()

    class History(StateHistory):
        def __init__(self) -> None:
            super().__init__(store, next(numbers))

    run_state_machine_as_test(
        History,
        settings=settings(max_examples=examples(0.6), stateful_step_count=20),
    )
