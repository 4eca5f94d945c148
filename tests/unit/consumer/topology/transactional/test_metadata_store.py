"""Values by name, in memory and in files."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.consumer.topology import TransactionMetadataError
from sequitur.consumer.topology.transactional.attempt import TransactionAttempt
from sequitur.consumer.topology.transactional.memory_spouts import MemoryTransactionalSpout
from sequitur.consumer.topology.transactional.metadata_store import (
    FolderMetadataStore,
    MemoryMetadataStore,
)
from sequitur.consumer.topology.transactional.spout_batches import SpoutBatches

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sequitur.consumer.topology.transactional.metadata_store import MetadataStore

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
        ("committed", "five", "metadata 'committed': 'five' is no transaction id"),
        ("partition/x/1", 1, "'x' is no number of a partition"),
        ("partition/0/y", 1, "'y' is no transaction id"),
    ],
)
def test_metadata_that_is_none_of_a_spouts_is_told(
    store: MetadataStore, name: str, value: object, what: str
) -> None:
    store.write(name, value)
    with pytest.raises(TransactionMetadataError, match=what):
        SpoutBatches(MemoryTransactionalSpout({}, ["n"], 1), store, 1)
