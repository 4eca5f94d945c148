"""What the tasks of keyed bolts keep, as a step's document names it; and its merges.

A task's keys are a base and the changes of later steps, in files (`key_files`). A document holds
small changes itself. Files are merged beside the steps, in a thread: a step that ends after a merge
names what was merged.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from sequitur.consumer.topology.api.builder import KEY_ENTRIES
from sequitur.consumer.topology.engine.key_groups import groups_of
from sequitur.pipelines.store.storage import StoredFile, new_folder, open_file
from sequitur.pipelines.topology.key_files import divide, join, merge, worth_merging

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sequitur.consumer.topology import Topology
    from sequitur.pipelines.store.checkpoint import Checkpoint
    from sequitur.pipelines.store.storage import Location
    from sequitur.pipelines.topology.key_files import Source


KEYS_FOLDER: Final = "keyed"
INLINE_BYTES: Final = 4 << 10
"""Changes of up to so many bytes are in the step's document."""


class KeyFile(Struct, frozen=True, omit_defaults=True, rename={"file_bytes": "bytes"}):
    """A file with its size, or what is in it."""

    file: StoredFile | None = None
    file_bytes: int = 0
    inline: bytes | None = None
    more_keys: int = 0  # of a step's own changes: how many more keys and timers there are
    more_timers: int = 0

    def __post_init__(self) -> None:
        is_file = self.file is not None and self.file_bytes > 0
        if is_file == (self.inline is not None):
            raise ValueError("keys are either in a file of some bytes or inline")

    @property
    def source(self) -> Source:
        if self.inline is not None:
            return self.inline
        assert self.file is not None
        return self.file

    @property
    def size_bytes(self) -> int:
        return self.file_bytes if self.inline is None else len(self.inline)


class KeptKeys(Struct, frozen=True):
    """The keys of one task of a keyed bolt."""

    component: str
    task: int
    base: KeyFile | None
    changes: tuple[KeyFile, ...]  # the oldest first
    keys: int = 0
    timers: int = 0
    blocked: int = 0  # keys of events that wait
    by_field: bool = False  # whether its keys are of groups, of which the task has some
    tied: int = 0  # how often a step has run a key's later events again without a failed one

    @property
    def sources(self) -> tuple[Source | None, list[Source]]:
        """Its base, if it has one, and the files of changes."""
        return None if self.base is None else self.base.source, [one.source for one in self.changes]

    @property
    def size_bytes(self) -> int:
        files = [*self.changes, *([] if self.base is None else [self.base])]
        return sum(one.size_bytes for one in files)

    @property
    def folders(self) -> set[str]:
        """The names of the folders with its files."""
        files = [*self.changes, *([] if self.base is None else [self.base])]
        return {one.file.parent.name for one in files if one.file is not None}


def with_changes(
    before: Sequence[KeptKeys],
    changes: Mapping[tuple[str, int], Sequence[KeyFile]],
    blocked: Mapping[tuple[str, int], int],
    by_field: Collection[str] = (),
    tied: Mapping[tuple[str, int], int] = {},
) -> list[KeptKeys]:
    """Return what tasks keep after a step, by component and task.

    Args:
        before: What they kept.
        changes: Files of changes.
        blocked: How many keys are blocked.
        by_field: The components whose keys are of groups.
        tied: Of how many keys the step has run later events again without a failed one.
    """
    kept = {(one.component, one.task): replace(one, blocked=0) for one in before}
    for where, files in changes.items():
        found = kept.get(where, KeptKeys(*where, None, (), by_field=where[0] in by_field))
        kept[where] = replace(
            found,
            changes=(*found.changes, *(replace(one, more_keys=0, more_timers=0) for one in files)),
            keys=found.keys + sum(one.more_keys for one in files),
            timers=found.timers + sum(one.more_timers for one in files),
        )
    for where, count in blocked.items():
        kept[where] = replace(kept.get(where, KeptKeys(*where, None, ())), blocked=count)
    for where in tied.keys() & kept.keys():
        kept[where] = replace(kept[where], tied=kept[where].tied + tied[where])
    return [kept[where] for where in sorted(kept)]


def counted(
    blocked: Mapping[int, Collection[bytes]], topology: Topology
) -> dict[tuple[str, int], int]:
    """Return how many keys of a bolt and task are blocked."""
    by_field = topology.stores_by_field
    names = [one for one in topology.key_stores if one not in by_field]
    names = [one for one in names if not one.endswith(KEY_ENTRIES)]
    return {(name, task): len(keys) for name in names for task, keys in blocked.items()}


def divided(
    kept: Sequence[KeptKeys],
    had: Mapping[str, int],
    tasks: Mapping[str, int],
    folder: Location,
) -> Sequence[KeptKeys]:
    """Return what tasks keep, once bolts that are keyed by a field have other numbers of tasks.

    Args:
        kept: What they keep.
        had: How many tasks each component had.
        tasks: How many it has.
        folder: Where files are written, if any are.
    """
    same = [one for one in kept if not one.by_field or had[one.component] == tasks[one.component]]
    if len(same) == len(kept):
        return kept
    for component in sorted({one.component for one in kept} - {one.component for one in same}):
        own = [one for one in kept if one.component == component]
        counts = sum(one.keys for one in own), sum(one.timers for one in own)
        tied = sum(one.tied for one in own)
        new_folder(folder, may_be_there=True)
        for task in range(tasks[component]):
            groups = groups_of(task, tasks[component])
            parts = [
                one.sources for one in own if _overlap(groups_of(one.task, had[component]), groups)
            ]
            if parts:
                path = divide(parts, groups, folder)
                base = KeyFile(path, size_of(path))
                # Only the sums of all tasks are told, so the first new one has those.
                new = KeptKeys(component, task, base, (), *counts, by_field=True, tied=tied)
                same.append(new)
                counts, tied = (0, 0), 0
    return same


def _overlap(some: range, others: range) -> bool:
    return some.start < others.stop and others.start < some.stop


class BoltKeys(NamedTuple):
    """What all tasks of a keyed bolt keep."""

    keys: int
    size_bytes: int  # of files
    timers: int
    blocked: int  # keys of events that wait
    tied: int = 0  # how often a key's later events were run again without a failed one


def keys_by_bolt(kept: Sequence[KeptKeys]) -> dict[str, BoltKeys]:
    found: dict[str, BoltKeys] = {}
    for one in kept:
        bolt = one.component.removesuffix(KEY_ENTRIES)
        before = found.get(bolt, (0,) * len(BoltKeys._fields))
        counts = one.keys, one.size_bytes, one.timers, one.blocked, one.tied
        found[bolt] = BoltKeys(*map(add, before, counts))
    return found


@dataclass(frozen=True, slots=True)
class _Merge:
    merged: tuple[KeyFile, ...]  # the changes that are merged
    into_base: bool
    folder: Location
    written: Future[KeyFile]


class KeyMerges:
    """Merges files of keys beside the steps, one at a time."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._thread = ThreadPoolExecutor(1, "key-merges")
        self._merges: dict[tuple[str, int], _Merge] = {}

    @property
    def folders(self) -> set[str]:
        """The names of the folders that merges write now."""
        return {one.folder.name for one in self._merges.values()}

    def take_in(self, kept: Sequence[KeptKeys]) -> list[KeptKeys]:
        """Return what tasks keep, with the files that were merged since.

        Raises:
            CheckpointError: A merge failed: a file is damaged. So does `OSError`.
        """
        return [self._merged(one) for one in kept]

    def begin(self, step: int, kept: Sequence[KeptKeys]) -> None:
        """Begin the merges that are worth it, once a step's document names the files."""
        for one in kept:
            where = one.component, one.task
            sizes = [change.size_bytes for change in one.changes]
            worth = worth_merging(0 if one.base is None else one.base.size_bytes, sizes)
            if worth is None or where in self._merges:
                continue
            folder = self._checkpoint.location(f"{KEYS_FOLDER}/{self._checkpoint.new_name(step)}")
            merged = one.changes[worth.begin :]
            base = one.base if worth.into_base else None
            written = self._thread.submit(_merge, base, merged, folder, into_base=worth.into_base)
            self._merges[where] = _Merge(merged, worth.into_base, folder, written)

    def close(self) -> None:
        """Forget the merges that have not begun: the process would wait for them at its end."""
        for where, one in [*self._merges.items()]:
            if one.written.cancel():
                del self._merges[where]

    def _merged(self, kept: KeptKeys) -> KeptKeys:
        where = kept.component, kept.task
        one = self._merges.get(where)
        if one is None or not one.written.done():
            return kept
        del self._merges[where]
        file, count = one.written.result(), len(one.merged)
        begin = next(
            (
                at
                for at in range(len(kept.changes) - count + 1)
                if kept.changes[at : at + count] == one.merged
            ),
            None,
        )
        if begin is None:
            return kept  # the step before was another one than this merge began with
        after = kept.changes[begin + count :]
        if one.into_base:
            return replace(kept, base=file, changes=after)
        return replace(kept, changes=(*kept.changes[:begin], file, *after))


def _merge(
    base: KeyFile | None, changes: Sequence[KeyFile], folder: Location, *, into_base: bool
) -> KeyFile:
    new_folder(folder)
    sources = [one.source for one in changes]
    if into_base:
        path = merge(None if base is None else base.source, sources, folder)
    else:
        path = join(sources, folder)
    return KeyFile(path, size_of(path))


def size_of(path: Location) -> int:
    if isinstance(path, Path):
        return path.stat().st_size
    with open_file(path) as file:
        return int(file.size())
