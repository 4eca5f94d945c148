"""Values by name, in memory and in files."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.consumer.topology.transactional.attempt import TransactionAttempt
from sequitur.consumer.topology.transactional.spout_batches import SpoutBatches
from sequitur.consumer.topology.transactional.spouts import (
    FolderMetadataStore,
    MemoryMetadataStore,
    MemoryTransactionalSpout,
    RotatingTransactionalState,
)
from sequitur.errors import TransactionMetadataError, TransactionOrderError
from tests.support.transactional_spouts import KilledError, KilledStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sequitur.consumer.topology.transactional.spouts import MetadataStore


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@pytest.fixture(params=[MemoryMetadataStore, FolderMetadataStore])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MetadataStore:
    made: MetadataStore = (
        MemoryMetadataStore()
        if request.param is MemoryMetadataStore
        else FolderMetadataStore(tmp_path / "new" / "folder")
    )
    return made


def test_values_come_back(store: MetadataStore) -> None:
    """By their name, the last one that was written; removing twice is no error."""
    store.write("a/1", {"x": [1, None]})
    store.write("a/b/2", "é")
    store.write("a", 3)
    store.write("a", 4)
    assert (store.read("a/1"), store.read("a/b/2"), store.read("a")) == ({"x": [1, None]}, "é", 4)
    assert sorted(store.names("a")) == ["a/1", "a/b/2"]
    store.remove("a/1")
    store.remove("a/1")
    assert list(store.names("a")) == ["a/b/2"]
    assert list(store.names("b")) == []
    with pytest.raises(KeyError):
        store.read("a/1")


@pytest.mark.parametrize("name", ["..", "../x", "a/../../x", ".hidden/y", "a b/%2E/ü", "x.json"])
def test_names_stay_in_the_folder(tmp_path: Path, name: str) -> None:
    store = FolderMetadataStore(tmp_path / "inside")
    store.write(f"top/{name}", 1)
    assert list(store.names("top")) == [f"top/{name}"]
    assert store.read(f"top/{name}") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]


@pytest.mark.parametrize("name", ["", "/a", "a//b", "a/"])
def test_a_name_without_a_part_is_refused(tmp_path: Path, name: str) -> None:
    """It would be another name's file, or outside of the folder."""
    with pytest.raises(ValueError, match="a part of this name is empty"):
        FolderMetadataStore(tmp_path).write(name, 1)


@given(_json)
def test_both_stores_give_the_same_back(tmp_path_factory: Any, value: Any) -> None:
    in_memory = MemoryMetadataStore()
    in_files = FolderMetadataStore(tmp_path_factory.getbasetemp() / "any value")
    for one in (in_memory, in_files):
        one.write("value", value)
    assert in_files.read("value") == in_memory.read("value") == value


@pytest.mark.parametrize("value", [object(), {1, 2}, float("nan"), float("inf"), {(1, 2): 3}])
def test_what_json_has_no_form_for_is_refused(store: MetadataStore, value: object) -> None:
    store.write("a/1", "before")
    with pytest.raises(TransactionMetadataError, match="metadata 'a/1': JSON has no form for it"):
        store.write("a/1", value)
    assert store.read("a/1") == "before"


@pytest.mark.promise("process-names-equal-in-json")
@pytest.mark.parametrize(
    "value", [{1: "a", "1": "b"}, [{"a": {None: 1, "null": 2}}], {True: 1, "true": 2}]
)
def test_names_that_are_one_in_json_are_refused(store: MetadataStore, value: object) -> None:
    """One of the two entries would be gone when it is read."""
    store.write("a/1", {1: "before"})
    with pytest.raises(TransactionMetadataError, match="metadata 'a/1': two names of it are"):
        store.write("a/1", value)
    assert store.read("a/1") == {"1": "before"}


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda text: text[:-9], "is damaged: JSONDecodeError"),
        (lambda _: b"", "is damaged: JSONDecodeError"),
        (lambda _: b"\xff\xfe\xff", "is damaged: UnicodeDecodeError"),
        (lambda _: b"[]", "is damaged: TypeError"),
        (lambda _: b"{}", "is damaged: KeyError"),
        (lambda text: text.replace(b"12", b"13"), "is damaged: its checksum is another one"),
        (lambda text: text.replace(b'n": 1', b'n": 2'), "metadata of version 2"),
    ],
)
def test_a_damaged_file_is_named(
    tmp_path: Path, damage: Callable[[bytes], bytes], what: str
) -> None:
    """By its path, when the next life begins: a batch that is another one would be worse."""
    spout = MemoryTransactionalSpout({0: [(number,) for number in range(30)]}, ["n"], 12)
    SpoutBatches(spout, FolderMetadataStore(tmp_path), 1).emit(TransactionAttempt(1, 0))
    path = tmp_path / "partition" / "0" / "1.json"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(TransactionMetadataError, match=what) as raised:
        SpoutBatches(spout, FolderMetadataStore(tmp_path), 1)
    assert str(path) in str(raised.value)


def test_a_write_that_is_cut_short_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own file is no value, and the next write goes over it."""
    store = FolderMetadataStore(tmp_path)
    store.write("a/1", "before")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="No space left"):
            store.write("a/1", "behind")
    again = FolderMetadataStore(tmp_path)
    assert (again.read("a/1"), list(again.names("a"))) == ("before", ["a/1"])
    again.write("a/1", "then")
    assert again.read("a/1") == "then"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["1.json"]


def test_a_file_is_synced_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its folder behind that: a power cut leaves the old value or the new one."""
    store = FolderMetadataStore(tmp_path)
    store.write("a/1", "before")
    path = tmp_path / "a" / "1.json"
    seen: list[tuple[bool, bool]] = []
    sync = os.fsync

    def watched(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        seen.append((is_folder, b"behind" in path.read_bytes()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    store.write("a/1", "behind")
    assert seen == [(False, False), (True, True)]


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("committed", "five", "metadata 'committed': 'five' is not a transaction id"),
        ("partition/x/1", 1, "'x' is no number of a partition"),
        ("partition/0/y", 1, "'y' is not a transaction id"),
    ],
)
def test_metadata_that_is_none_of_a_spouts_is_told(
    store: MetadataStore, name: str, value: object, what: str
) -> None:
    store.write(name, value)
    with pytest.raises(TransactionMetadataError, match=what):
        SpoutBatches(MemoryTransactionalSpout({}, ["n"], 1), store, 1)


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
        ([], 2, "transaction 2 cannot begin: none has metadata yet. Begin transaction 1 first"),
        ([], 0, "transaction 0 has no metadata: ids begin at 1"),
        (
            [1],
            3,
            "transaction 3 cannot begin: the latest with metadata is 1. Begin transaction 2 first",
        ),
        ([1, 2, 3], 0, "transaction 0 has no metadata, and transaction 3 after it has"),
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
    with pytest.raises(TransactionMetadataError, match=f"{name}.* is not a transaction id"):
        RotatingTransactionalState(store, "spout")
