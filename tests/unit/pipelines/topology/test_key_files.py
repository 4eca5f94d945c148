"""Files of keys: which are read, damaged ones, and what merges of them take."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from sequitur.consumer.topology.engine.key_store import KeyChange
from sequitur.errors import CheckpointError
from sequitur.pipelines.store.storage import write_new
from sequitur.pipelines.topology.key_files import (
    KeyFiles,
    Merging,
    merge,
    worth_merging,
    write_changes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


_ALL_KEYS = b"\xff"
_END_MS = 1 << 62


def _changes(count: int, entry_bytes: int = 100) -> list[KeyChange]:
    return [
        KeyChange(b"key-%07d" % number, number.to_bytes(entry_bytes, "big"), _END_MS - number)
        for number in range(count)
    ]


def _written(path: Path, changes: list[KeyChange], step: int = 0) -> Path:
    write_new(path, write_changes(changes, step))
    return path


def _read_all(path: Path) -> None:
    files = KeyFiles(path, ())
    list(files.range(b"", _ALL_KEYS))
    list(files.due(_END_MS))


def _places(content: bytes) -> Iterator[int]:
    """Yield each seventh place, and all of the tail."""
    yield from range(0, len(content), 7)
    yield from range(len(content) - 40, len(content))


def test_a_file_with_any_byte_changed_is_named(tmp_path: Path) -> None:
    path = _written(tmp_path / "changes", _changes(3, 8))
    content = path.read_bytes()
    for place in _places(content):
        damaged = bytearray(content)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=f"{path} cannot be read"):
            _read_all(path)


def test_a_file_that_was_cut_is_named(tmp_path: Path) -> None:
    path = _written(tmp_path / "changes", _changes(3, 8))
    content = path.read_bytes()
    for size in _places(content):
        path.write_bytes(content[:size])
        with pytest.raises(CheckpointError, match=f"{path} cannot be read"):
            _read_all(path)


def test_a_file_that_lost_bytes_in_its_middle_is_named(tmp_path: Path) -> None:
    path = _written(tmp_path / "changes", _changes(3, 8))
    content = path.read_bytes()
    path.write_bytes(content[:50] + content[60:])
    with pytest.raises(CheckpointError, match=f"{path} cannot be read: a part of it is missing"):
        KeyFiles(path, ())


def test_another_format_is_refused_with_its_number(tmp_path: Path) -> None:
    path = _written(tmp_path / "changes", _changes(3))
    content = bytearray(path.read_bytes())
    content[-9] = 7
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{path} cannot be read: it has format 7, this"):
        KeyFiles(path, ())


def test_damage_of_inline_changes_names_the_document() -> None:
    with pytest.raises(CheckpointError, match="changes in a step's document cannot be read"):
        KeyFiles(None, [write_changes(_changes(3), 0)[:-1]])


@pytest.mark.parametrize("keys", [(b"b", b"a"), (b"a", b"a")])
def test_changes_out_of_order_are_not_written(keys: tuple[bytes, bytes]) -> None:
    with pytest.raises(ValueError, match="in order, each once"):
        write_changes([KeyChange(key, b"", None) for key in keys], 0)


def test_a_store_without_files_follows_to_the_first_ones() -> None:
    """What it was asked before there were any is read again."""
    files = KeyFiles(None, ())
    assert files.get(b"key-0000000") is None
    files.follow(None, [write_changes(_changes(1, 8), 0)])
    assert files.get(b"key-0000000") == bytes(8)


def test_only_the_block_of_a_key_is_read(tmp_path: Path) -> None:
    """Damage of the first block does not reach keys of other blocks, or timers."""
    path = _written(tmp_path / "changes", _changes(20_000))
    base = merge(None, [path], tmp_path)
    content = bytearray(base.read_bytes())
    content[5_000] ^= 1
    base.write_bytes(bytes(content))
    files = KeyFiles(base, ())
    assert files.get(b"key-0019999") == (19_999).to_bytes(100, "big")
    assert files.next_timer_ms() == _END_MS - 19_999
    assert next(files.due(_END_MS)) == (_END_MS - 19_999, b"key-0019999")
    with pytest.raises(CheckpointError, match=f"{base} cannot be read"):
        files.get(b"key-0000000")


def test_a_merge_that_fails_leaves_no_file(tmp_path: Path) -> None:
    path = _written(tmp_path / "changes", _changes(20_000))
    content = bytearray(path.read_bytes())
    content[1_000_000] ^= 1
    path.write_bytes(content)
    (tmp_path / "merged").mkdir()
    with pytest.raises(CheckpointError, match=f"{path} cannot be read"):
        merge(None, [path], tmp_path / "merged")
    assert not list((tmp_path / "merged").iterdir())


@pytest.fixture
def arrow_pool() -> Iterator[pa.MemoryPool]:
    """A pool that counts what the test takes of Arrow's memory."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    yield pool
    pa.set_memory_pool(before)


def test_a_merge_has_a_few_blocks_in_memory(tmp_path: Path, arrow_pool: pa.MemoryPool) -> None:
    rows = _changes(60_000, 2_000)
    paths = [_written(tmp_path / f"{step}", rows[step::3], step) for step in range(3)]
    pool = pa.proxy_memory_pool(arrow_pool)  # which has not counted the writing
    pa.set_memory_pool(pool)
    merge(None, paths, tmp_path)
    assert sum(path.stat().st_size for path in paths) > 110 << 20
    assert pool.max_memory() < 32 << 20


def test_memory_is_bounded_while_all_keys_are_read(
    tmp_path: Path, arrow_pool: pa.MemoryPool
) -> None:
    count = 20_000
    base = merge(None, [_written(tmp_path / "changes", _changes(count))], tmp_path)
    before = arrow_pool.bytes_allocated()
    tracemalloc.start()
    try:
        files = KeyFiles(base, (), memory_bytes=1 << 19)
        for number in range(count):
            assert files.get(b"key-%07d" % number) is not None
        held = tracemalloc.get_traced_memory()[0] + arrow_pool.bytes_allocated() - before
    finally:
        tracemalloc.stop()
    assert held < 3 << 18


_MIB = 1 << 20


@pytest.mark.parametrize(
    ("base_bytes", "changes_bytes", "expected"),
    [
        (0, [], None),
        (0, [_MIB - 1], None),
        (0, [_MIB], Merging(0, into_base=True)),
        (100 * _MIB, [_MIB] * 15, None),
        (100 * _MIB, [_MIB] * 25, Merging(0, into_base=True)),
        (100 * _MIB, [_MIB] * 16, Merging(0, into_base=False)),
        (100 * _MIB, [9 * _MIB, *[9_000] * 15], Merging(1, into_base=False)),
        (100 * _MIB, [9_000, *[9_000] * 15], Merging(0, into_base=False)),
    ],
)
def test_changes_are_merged_by_their_sizes(
    base_bytes: int, changes_bytes: list[int], expected: Merging | None
) -> None:
    assert worth_merging(base_bytes, changes_bytes) == expected


def test_files_stay_few_and_each_byte_is_written_a_few_times() -> None:
    base, changes, written = 0, list[int](), 0
    steps, size = 20_000, 10_000
    for _ in range(steps):
        changes.append(size)
        merging = worth_merging(base, changes)
        if merging is not None:
            joined = sum(changes[merging.begin :])
            if merging.into_base:
                base, changes = max(base, 100 * _MIB), []
                written += base
            else:
                changes[merging.begin :] = [joined]
                written += joined
        assert len(changes) < 32
    assert written < 12 * steps * size
