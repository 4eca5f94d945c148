"""Metadata by transaction: made once, in order, kept over restarts, and removed behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import TransactionMetadataError, TransactionOrderError
from sequitur.consumer.topology.transactional.metadata_store import (
    FolderMetadataStore,
    MemoryMetadataStore,
    RotatingTransactionalState,
)
from tests.support.transactional_spouts import KilledError, KilledStore

if TYPE_CHECKING:
    from pathlib import Path


def _made(transaction_id: int, previous: Any) -> Any:
    return {"id": transaction_id, "after": previous and previous["id"]}


def _filled(
    store: MemoryMetadataStore, *ids: int, strictly_ordered: bool = False
) -> RotatingTransactionalState:
    state = RotatingTransactionalState(store, "spout", strictly_ordered=strictly_ordered)
    for one in ids:
        state.state(one, _made)
    return state


def test_metadata_is_made_once_from_the_one_before() -> None:
    state = RotatingTransactionalState(MemoryMetadataStore(), "spout")
    assert (state.last, state.transaction_ids) == (None, ())
    assert state.state(1, _made) == {"id": 1, "after": None}
    assert state.state(2, _made) == {"id": 2, "after": 1}
    assert state.state(2, lambda *_: "another") == {"id": 2, "after": 1}
    assert state.last == {"id": 2, "after": 1}
    assert (state.previous(1), state.previous(2)) == (None, {"id": 1, "after": None})
    assert (2 in state, 3 in state, state.transaction_ids) == (True, False, (1, 2))


@pytest.mark.parametrize("count", [1, 9, 10, 11, 101])
def test_metadata_survives_a_restart(tmp_path: Path, count: int) -> None:
    """In the order of ids, and not of the names of files."""
    state = RotatingTransactionalState(FolderMetadataStore(tmp_path), "spout")
    for one in range(1, count + 1):
        state.state(one, _made)
    state.cleanup_before(count - 2)
    again = RotatingTransactionalState(FolderMetadataStore(tmp_path), "spout")
    assert again.transaction_ids == tuple(range(max(1, count - 2), count + 1))
    assert again.last == {"id": count, "after": count - 1 or None}
    assert again.state(count + 1, _made) == {"id": count + 1, "after": count}


def test_metadata_is_as_json_gives_it_from_the_beginning() -> None:
    """Else a spout would see a tuple before a restart, and a list behind it."""
    state = RotatingTransactionalState(MemoryMetadataStore(), "spout")
    assert state.state(1, lambda *_: (1, {2: 3})) == [1, {"2": 3}]


@pytest.mark.parametrize(
    ("there", "asked", "what"),
    [
        ([], 2, "transaction 2 cannot begin: none before it has, so that 1 is next"),
        ([], 0, "transaction 0 has no metadata: ids begin at 1"),
        ([1], 3, "transaction 3 cannot begin: the latest with metadata is 1, so that 2 is next"),
        ([1, 2, 3], 0, "transaction 0 has no metadata, and transaction 3 behind it has"),
    ],
)
def test_ids_have_no_gaps(there: list[int], asked: int, what: str) -> None:
    """The message names the state, the id, and which would be next; nothing is made."""
    state = _filled(MemoryMetadataStore(), *there, strictly_ordered=True)
    with pytest.raises(TransactionOrderError, match=f"^spout: {what}$"):
        state.state(asked, _made)
    assert state.transaction_ids == tuple(there)


def test_gaps_are_allowed_where_ids_only_grow() -> None:
    """But none is made behind another: that one has gone on from elsewhere."""
    state = _filled(MemoryMetadataStore(), 3, 7)
    assert state.state(9, _made) == {"id": 9, "after": 7}
    with pytest.raises(TransactionOrderError, match="spout: transaction 8 has no metadata, and"):
        state.state(8, _made)


@pytest.mark.parametrize(
    ("before", "left"), [(0, (3, 4, 7)), (3, (3, 4, 7)), (4, (4, 7)), (6, (4, 7)), (9, (7,))]
)
def test_clean_up_keeps_what_the_next_one_goes_on_from(before: int, left: tuple[int, ...]) -> None:
    """That of the transaction itself, or without one the latest before it; in the store, too."""
    store = MemoryMetadataStore()
    state = _filled(store, 3, 4, 7)
    state.cleanup_before(before)
    assert state.transaction_ids == left
    assert sorted(store.names("spout")) == [f"spout/{one}" for one in left]


def test_what_is_removed_behind_one_is_made_anew() -> None:
    store = MemoryMetadataStore()
    state = _filled(store, 1, 2, 3)
    state.remove_after(1)
    assert store.names("spout") == ["spout/1"]
    assert state.state(2, lambda _, previous: [previous["id"]]) == [1]


def test_a_kill_while_metadata_is_removed_leaves_no_gap() -> None:
    store = KilledStore()
    state = _filled(store, 1, 2, 3, 4)
    store.changes_left = 1
    with pytest.raises(KilledError):
        state.remove_after(1)
    again = RotatingTransactionalState(store, "spout")
    assert again.transaction_ids == (1, 2, 3)


def test_nothing_is_kept_of_what_raises() -> None:
    """Neither if the metadata cannot be made, nor if it cannot be written."""
    state = RotatingTransactionalState(MemoryMetadataStore(), "spout")
    with pytest.raises(ZeroDivisionError):
        state.state(1, lambda *_: 1 // 0)
    with pytest.raises(TransactionMetadataError, match="metadata 'spout/1': JSON has no form"):
        state.state(1, lambda *_: object())
    assert state.transaction_ids == ()
    assert state.state(1, _made) == {"id": 1, "after": None}


@pytest.mark.parametrize("name", ["spout/one", "spout/01", "spout/0", "spout/1/2", "spout/²"])
def test_a_foreign_name_is_told(name: str) -> None:
    """Something else writes to this store."""
    store = MemoryMetadataStore()
    store.write(name, 1)
    with pytest.raises(TransactionMetadataError, match=f"{name}.* is no transaction id"):
        RotatingTransactionalState(store, "spout")
