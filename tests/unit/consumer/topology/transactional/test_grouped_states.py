"""States that say by what their keys are grouped, and those that do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sequitur.consumer.topology import (
    ProcessSettings,
    TopologyBuildError,
    TransactionalTopologyBuilder,
    TransactionError,
    TransactionTester,
)
from sequitur.consumer.topology.state import NonTransactionalState, TransactionalState
from tests.support.transactions import Gather, Journal, Noting, counts, events, store_in

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sequitur.consumer.topology.state import State


class Lower(Gather):
    """Counts words in lower case."""

    def at_end(self) -> None:
        self.values = [value.lower() for value in self.values]
        super().at_end()


def _same(key: str) -> str:
    return key


def _builder(journal: Journal) -> TransactionalTopologyBuilder:
    builder = TransactionalTopologyBuilder("grouped", "spout")
    builder.set_bolt("a", Noting(journal)).shuffle_grouping("spout")
    return builder


def _tester(bolt: Gather, states: Mapping[str, State]) -> TransactionTester:
    builder = _builder(bolt.journal)
    builder.set_bolt("sum", bolt, 8, states=states).fields_grouping("a", "value")
    return TransactionTester(builder.build(), ProcessSettings(max_attempts=2))


@pytest.mark.promise("state-tasks-committer-update")
def test_a_key_that_is_not_the_tasks_is_told_in_the_first_batch(tmp_path: Path) -> None:
    """Before both spellings meet; nothing is written."""
    store = store_in(tmp_path)
    states = {"count": TransactionalState(store, "counts", grouped_by=_same)}
    with pytest.raises(TransactionError, match=r"it is grouped as '(the|of|and|to)', which"):
        _tester(Lower(Journal()), states).run(events("The", "Of", "And", "To"))
    assert counts(store, "counts") == {}


def test_keys_that_are_grouped_as_they_say_go_on(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    states = {"count": TransactionalState(store, "counts", grouped_by=_same)}
    values = [f"word {number}" for number in range(40)]
    _tester(Gather(Journal()), states).run(events(*values))
    assert counts(store, "counts") == dict.fromkeys(values, 1)


@pytest.mark.promise("state-tasks-committer-update")
@pytest.mark.parametrize("kind", [TransactionalState, NonTransactionalState])
def test_undeclared_two_tasks_of_one_key_are_told(tmp_path: Path, kind: type[State]) -> None:
    """Of states without transactions, too: no update is lost silently."""
    states = {"count": kind(store_in(tmp_path), "counts")}
    tester = _tester(Lower(Journal()), states)
    with pytest.raises(TransactionError, match=r"key 'and'.*both update it"):
        tester.run(events("And", "and", "AND", "aND"))


def test_what_is_grouped_otherwise_is_refused_when_it_is_built(tmp_path: Path) -> None:
    builder = _builder(Journal())
    states = {"count": TransactionalState(store_in(tmp_path), "counts", grouped_by=_same)}
    builder.set_bolt("sum", Gather(Journal()), 2, states=states).shuffle_grouping("a")
    with pytest.raises(TopologyBuildError, match="'sum', state 'count' has grouped_by"):
        builder.build()
