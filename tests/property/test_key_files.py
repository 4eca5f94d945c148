"""Keys in files, under random steps, merges and restarts: they are those of a dict."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from sequitur.consumer.topology.engine.key_store import KeyChange
from sequitur.pipelines.store.storage import write_new
from sequitur.pipelines.topology.key_files import KeyFiles, join, merge, write_changes
from sequitur.pipelines.topology.key_table import KEY_LIMITS, KeyLimits, KeyTable

if TYPE_CHECKING:
    from sequitur.pipelines.topology.key_files import Source


_keys = st.one_of(
    st.binary(max_size=3),
    st.text("ab\0", max_size=4).map(str.encode),  # many that begin alike, or end in zeros
    st.integers(0, 400).map(b"user-%d".__mod__),
)
_times = st.one_of(st.integers(0, 30), st.integers(-(1 << 40), 1 << 40))
_entries = st.one_of(st.none(), st.tuples(st.binary(max_size=40), st.one_of(st.none(), _times)))
_changes = st.dictionaries(_keys, _entries, max_size=60)


class KeyFilesMachine(RuleBasedStateMachine):
    """Small blocks, and little memory: both are used up all the time."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.folder = Path(self._folder.name)
        self.step = 0
        self.base: Source | None = None
        self.changes: list[Source] = []
        self.kept: dict[bytes, tuple[bytes, int | None]] = {}
        self.is_behind = False

    @initialize(
        memory_bytes=st.sampled_from([0, 2_000, 1 << 20]),
        limits=st.sampled_from([KeyLimits(64, 160, 64), KeyLimits(400, 400, 300), KEY_LIMITS]),
    )
    def begin(self, memory_bytes: int, limits: KeyLimits) -> None:
        self.memory_bytes, self.limits = memory_bytes, limits
        self.files = KeyFiles(None, (), memory_bytes=memory_bytes)

    def teardown(self) -> None:
        self._folder.cleanup()

    @rule(changes=_changes, is_inline=st.booleans(), follows=st.booleans())
    def step_ends(
        self, changes: dict[bytes, tuple[bytes, int | None] | None], is_inline: bool, follows: bool
    ) -> None:
        content = write_changes(
            [KeyChange(key, *(changes[key] or (None, None))) for key in sorted(changes)],
            self.step,
            self.limits,
        )
        if not is_inline:
            path = self.folder / f"changes-{self.step}"
            write_new(path, content)
        self.changes.append(content if is_inline else path)
        self.step += 1
        for key, kept in changes.items():
            if kept is None:
                self.kept.pop(key, None)
            else:
                self.kept[key] = kept
        self.is_behind = not follows
        if follows:
            self.files.follow(self.base, self.changes)

    @rule(data=st.data())
    @precondition(lambda self: self.changes)
    def changes_are_joined(self, data: st.DataObject) -> None:
        begin = data.draw(st.integers(0, len(self.changes) - 1))
        end = data.draw(st.integers(begin + 1, len(self.changes)))
        self.changes[begin:end] = [join(self.changes[begin:end], self.folder, self.limits)]

    @rule(data=st.data())
    @precondition(lambda self: self.changes)
    def a_base_is_merged(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.changes)))
        self.base = merge(self.base, self.changes[:count], self.folder, self.limits)
        del self.changes[:count]

    @rule()
    def names_are_followed(self) -> None:
        self.files.follow(self.base, self.changes)
        self.is_behind = False

    @rule()
    def another_process_opens(self) -> None:
        self.files = KeyFiles(self.base, self.changes, memory_bytes=self.memory_bytes)
        self.is_behind = False

    @rule(keys=st.lists(_keys, max_size=20))
    @precondition(lambda self: not self.is_behind)
    def keys_are_read(self, keys: list[bytes]) -> None:
        for key in (*keys, *list(self.kept)[:20]):
            assert self.files.get(key) == self.kept.get(key, (None,))[0]

    @rule(keys=st.sets(_keys, max_size=20))
    @precondition(lambda self: not self.is_behind)
    def keys_are_read_at_once(self, keys: set[bytes]) -> None:
        asked = sorted(keys | set(list(self.kept)[:20]))
        assert self.files.get_all(asked) == [self.kept.get(key, (None,))[0] for key in asked]

    @rule(low=_keys, high=_keys)
    @precondition(lambda self: not self.is_behind)
    def a_range_is_read(self, low: bytes, high: bytes) -> None:
        expected = [(key, self.kept[key][0]) for key in sorted(self.kept) if low <= key < high]
        assert list(self.files.range(low, high)) == expected

    @rule(until_ms=_times)
    @precondition(lambda self: not self.is_behind)
    def timers_are_due(self, until_ms: int) -> None:
        timers = sorted((ms, key) for key, (_, ms) in self.kept.items() if ms is not None)
        assert list(self.files.due(until_ms)) == [one for one in timers if one[0] <= until_ms]
        assert self.files.next_timer_ms() == (timers[0][0] if timers else None)

    @precondition(lambda self: self.base is not None and not self.changes)
    @invariant()
    def a_base_has_no_gone_keys(self) -> None:
        assert self.base is not None
        assert KeyTable(self.base).rows == len(self.kept)


TestKeyFiles = KeyFilesMachine.TestCase
