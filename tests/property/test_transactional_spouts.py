"""Transactional spouts under random failures, kills and power cuts: each tuple counts once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.transactional_spouts import (
    Driver,
    KilledError,
    OpaqueSpout,
    PartitionedSpout,
    Source,
    WholeSpout,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_STEPS: Final = {
    "emit": 0,
    "commit": 0,
    "commit_unseen": 255,
    "fail": 3,
    "restart": 255,
    "kill": 8,
    "broken": 4,
    "take": 4,
    "reachable": 5,
    "add_rows": 4,
    "add_partition": 4,
}
"""The largest number of each step."""
_histories = st.lists(
    st.one_of(*(st.tuples(st.just(one), st.integers(0, most)) for one, most in _STEPS.items())),
    max_size=60,
)


class _World(Driver):
    """A driver and a committing bolt, which keeps each batch under its transaction id."""

    def __init__(self, spout: Any) -> None:
        self.emitted: dict[int, list[int]] = {}
        self.ever: dict[int, list[int]] = {}
        self.kept: dict[int, list[int]] = {}
        self.begun = 0
        super().__init__(spout)

    def step(self, what: str, number: int) -> Any:
        try:
            return super().step(what, number)
        except KilledError:
            return self.restart(number)

    @property
    def upcoming(self) -> int:
        return max(self.emitted, default=self.last_committed) + 1

    def emit(self, _: int = 0) -> list[int]:
        transaction_id = self.upcoming
        self.begun = max(self.begun, transaction_id)
        try:
            rows = super().emit(transaction_id)
        except ConnectionResetError:
            return []
        if not self.spout.is_opaque:
            assert self.ever.setdefault(transaction_id, rows) == rows
        self.emitted[transaction_id] = rows
        return rows

    def commit(self, _: int = 0) -> None:
        transaction_id = self.last_committed + 1
        if transaction_id in self.emitted:
            self.kept[transaction_id] = self.emitted[transaction_id]
            super().commit(transaction_id)
            del self.emitted[transaction_id]

    def commit_unseen(self, power: int) -> None:
        """Commit in the store, and have the next life not know of it."""
        before = self.last_committed
        self.commit()
        self.last_committed = before
        self.restart(power)

    def fail(self, back: int) -> list[int]:
        transaction_id = self.upcoming - 1 - back
        if transaction_id not in self.emitted:
            return []
        again = super().fail(transaction_id)
        assert again == sorted(one for one in self.emitted if one >= transaction_id)
        for one in again:
            del self.emitted[one]
        return again

    def restart(self, power: int) -> None:
        self.store.changes_left = None
        self.store.cut_power(power)
        self.emitted.clear()
        super().restart(power % 3 + 1)

    def kill(self, changes: int) -> None:
        self.store.changes_left = changes

    def add_rows(self, partition: int) -> None:
        if partition < len(self.spout.source.rows):
            self.spout.source.rows[partition] += 3

    def drain(self) -> None:
        source = self.spout.source
        source.reachable, source.broken, source.take = None, None, 5
        self.restart(0)
        repeats = self.begun - self.last_committed  # their batches may be fixed, and small
        for _ in range(repeats + max(source.rows, default=0) // source.take + 1):
            self.emit()
            self.commit()


@pytest.mark.promise("state-random-against-plain")
@pytest.mark.parametrize("kind", [WholeSpout, PartitionedSpout, OpaqueSpout])
@given(history=_histories, rows=st.lists(st.integers(0, 9), min_size=1, max_size=4))
def test_each_tuple_is_in_one_committed_batch(
    kind: Callable[[Source], Any], history: list[tuple[str, int]], rows: list[int]
) -> None:
    """In order by partition, whatever fails; for one id the same batch, if the spout can do so."""
    source = Source([*rows])
    world = _World(kind(source))
    for what, number in history:
        world.step(what, number)
    world.drain()
    committed = [row for _, batch in sorted(world.kept.items()) for row in batch]
    read = source.rows[:1] if kind is WholeSpout else source.rows
    for partition, count in enumerate(read):
        first = 1000 * partition + 1
        found = [row for row in committed if row // 1000 == partition]
        assert found == list(range(first, first + count))
    assert sorted(world.kept) == list(range(1, world.last_committed + 1))
