"""A disk that crashes between any two steps, and a journal that is nothing but a list."""

from __future__ import annotations

import dataclasses
import errno
from typing import TYPE_CHECKING

import msgspec

from sequitur.errors import JournalLockedError
from sequitur.kafka.record_batch import Stamp, batch_of, stamped
from sequitur.kafka.record_format import HEADER_SIZE
from sequitur.producer.journal.frames import (
    Acks,
    BatchFrame,
    Commit,
    Drop,
    Frame,
    Head,
    Numbered,
    Renewal,
    SourcePosition,
    Waiting,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sequitur.kafka.identity import Identity

SECTOR_BYTES = 512


class PowerCut(BaseException):
    """The machine stops here; not an Exception, so that nothing on the way handles it."""


@dataclasses.dataclass
class _Inode:
    durable: bytes = b""
    content: bytes = b""


class ModelDisk:
    """One directory: what programs see, and what would be left of it after a power cut.

    Attributes:
        steps_left: the power is cut at the step after so many; None for never.
        capacity_bytes: beyond this, appends write in part and fail with ENOSPC.
        is_quota: the capacity is not told before it is met.
        sync_fails: the next syncs of files fail with EIO.
        during_sync: called once, while the next sync of a file waits for the disk.
    """

    def __init__(self) -> None:
        self.place = "model"
        self.steps_left: int | None = None
        self.capacity_bytes: int | None = None
        self.is_quota = False
        self.sync_fails = False
        self.during_sync: Callable[[], object] | None = None
        self.files: dict[str, _Inode] = {}
        self._durable_files: dict[str, _Inode] = {}
        self._directory_steps: list[tuple[str, Callable[[dict[str, _Inode]], object]]] = []
        self._locked = False

    @property
    def used_bytes(self) -> int:
        return sum(len(inode.content) for inode in self.files.values())

    def step(self) -> bool:
        """Counts down to the power cut; True for the step during which it happens."""
        if self.steps_left is None:
            return False
        self.steps_left -= 1
        return self.steps_left < 0

    def lock(self) -> None:
        if self._locked:
            raise JournalLockedError(self.place, 1)
        self._locked = True

    def unlock(self) -> None:
        self._locked = False

    def names(self) -> list[str]:
        return list(self.files)

    def read(self, name: str) -> bytes:
        return self.files[name].content

    def read_part(self, name: str, offset: int, length: int) -> bytes:
        return self.files[name].content[offset : offset + length]

    def free_bytes(self) -> int:
        """What the capacity leaves; a quota tells nothing."""
        if self.capacity_bytes is None or self.is_quota:
            return 1 << 40
        return max(self.capacity_bytes - self.used_bytes, 0)

    def open(self, name: str) -> ModelFile:
        if name not in self.files:
            inode = _Inode()
            self._change("create", lambda files: files.__setitem__(name, inode))
        return ModelFile(self, self.files[name])

    def rename(self, name: str, new_name: str) -> None:
        """Renames a file; may be undone by a power cut."""
        self._change("rename", lambda files: files.__setitem__(new_name, files.pop(name)))

    def unlink(self, name: str) -> None:
        """Removes a file; may be undone by a power cut."""
        self._change("unlink", lambda files: files.pop(name))

    def sync_directory(self) -> None:
        if self.step():
            raise PowerCut
        self._durable_files = dict(self.files)
        self._directory_steps.clear()

    def after_kill(self) -> ModelDisk:
        """What the next process finds when only the process died: all that was written."""
        self._locked = False
        self.steps_left = None
        return self

    def after_power_cut(self, choose: Callable[[int, int], int]) -> ModelDisk:
        """What is left of it: each unsynced file is cut anywhere and may have holes of zeros.

        Args:
            choose: a number from the first to the second, both included.
        """
        disk = ModelDisk()
        files = dict(self._durable_files)
        # New names come in order, as POSIX file systems do; removals need not.
        for kind, change in self._directory_steps[: choose(0, len(self._directory_steps))]:
            if kind != "unlink" or choose(0, 1):
                change(files)
        for name, inode in files.items():
            left = _after_power_cut(inode, choose)
            disk.files[name] = _Inode(left, left)
        disk._durable_files = dict(disk.files)
        return disk

    def _change(self, kind: str, change: Callable[[dict[str, _Inode]], object]) -> None:
        if self.step():
            raise PowerCut
        change(self.files)
        self._directory_steps.append((kind, change))


class ModelFile:
    """An append handle."""

    def __init__(self, disk: ModelDisk, inode: _Inode) -> None:
        self._disk = disk
        self._inode = inode

    def append(self, buffers: Sequence[bytes]) -> None:
        """Writes; cut in the middle by a power cut or a full disk."""
        data = b"".join(buffers)
        if self._disk.step():
            self._inode.content += data[: len(data) // 2]
            raise PowerCut
        capacity = self._disk.capacity_bytes
        room = len(data) if capacity is None else max(capacity - self._disk.used_bytes, 0)
        self._inode.content += data[:room]
        if room < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")

    def sync(self) -> None:
        if self._disk.step():
            raise PowerCut
        if self._disk.sync_fails:
            raise OSError(errno.EIO, "Input/output error")
        content = self._inode.content
        meanwhile, self._disk.during_sync = self._disk.during_sync, None
        if meanwhile is not None:
            meanwhile()
        self._inode.durable = content

    def truncate(self, length: int) -> None:
        """Cuts the file; may be undone by a power cut."""
        if self._disk.step():
            raise PowerCut
        self._inode.content = self._inode.content[:length]

    def close(self) -> None:
        """Nothing to give back."""


def _after_power_cut(inode: _Inode, choose: Callable[[int, int], int]) -> bytes:
    durable, content = inode.durable, inode.content
    if not content.startswith(durable):  # cut short, and that was not synced
        return (choose(0, 1) and content) or durable
    left = bytearray(content[: choose(len(durable), len(content))])
    sectors = range(len(durable) // SECTOR_BYTES, len(left) // SECTOR_BYTES + 1)
    for sector in sectors if len(left) > len(durable) and choose(0, 1) else ():
        if choose(0, 2) == 0:
            start = max(sector * SECTOR_BYTES, len(durable))
            end = min(sector * SECTOR_BYTES + SECTOR_BYTES, len(left))
            left[start:end] = bytes(end - start)
    return bytes(left)


Round = tuple["Sequence[Frame]", bool]
"""Frames, and whether they are a part of a longer round."""


@dataclasses.dataclass
class JournalModel:
    """The meaning of a list of rounds, worked out the slow and plain way."""

    identity: Identity | None = None
    batches: list[BatchFrame] = dataclasses.field(default_factory=list)
    waiting: dict[tuple[str, int, int], Waiting] = dataclasses.field(default_factory=dict)
    parted: list[Frame] = dataclasses.field(default_factory=list)
    positions: dict[str, bytes] = dataclasses.field(default_factory=dict)
    numbering: dict[tuple[str, int], tuple[int, int, int, int]] = dataclasses.field(
        default_factory=dict
    )
    next_event_sequence: int = 0

    @classmethod
    def of(cls, rounds: Sequence[Round]) -> JournalModel:
        model = cls()
        for frames, part in rounds:
            for frame in frames:
                if part:
                    model.parted.append(frame)
                else:
                    model.take(frame)
        return model

    def take(self, frame: Frame) -> None:
        match frame:
            case BatchFrame():
                self._take_batch(frame)
            case Waiting():
                self._take_waiting(frame)
            case Numbered():
                self._take_numbers(frame)
            case Acks():
                acked = {mark.key for mark in frame.marks}
                self.batches = [batch for batch in self.batches if batch.key not in acked]
            case Drop():
                self.waiting = {k: w for k, w in self.waiting.items() if k not in frame.waiting}
            case Commit():
                self._commit(whole=frame.whole)
            case SourcePosition():
                self._position(frame)
            case Renewal():
                self._renew(frame)
            case _:
                assert not isinstance(frame, Head)

    def _commit(self, *, whole: bool) -> None:
        parted, self.parted = self.parted, []
        for part in parted if whole else ():
            self.take(part)

    def _take_batch(self, batch: BatchFrame) -> None:
        self.waiting.pop((batch.topic, batch.partition, batch.first_event_sequence), None)
        self.batches.append(batch)
        self._number(batch)
        self._seen(batch.last_event_sequence)
        self._position(batch.position)

    def _take_waiting(self, waiting: Waiting) -> None:
        data = waiting.data
        if waiting.piece:
            before = self.waiting.get(waiting.key)
            data = batch_of(
                (b"" if before is None else before.data[HEADER_SIZE:]) + data,
                waiting.record_count,
                first_ms=waiting.first_ms,
                last_ms=waiting.last_ms,
            )
        self.waiting[waiting.key] = msgspec.structs.replace(waiting, piece=False, data=data)
        self._seen(waiting.last_event_sequence)

    def _take_numbers(self, numbered: Numbered) -> None:
        for number in numbered.numbers:
            stamp = Stamp(number.producer_id, number.epoch, number.base_sequence)
            has = [batch.key for batch in self.batches]
            if number.key in has:
                place = has.index(number.key)
                self.batches[place] = msgspec.structs.replace(
                    self.batches[place],
                    timestamp_ms=number.timestamp_ms,
                    data=stamped(self.batches[place].data, stamp, number.timestamp_ms),
                )
                continue
            waiting = self.waiting.pop(number.waiting_key)
            dated = number.timestamp_ms == -1
            self._take_batch(
                BatchFrame(
                    number.topic,
                    number.partition,
                    stamp.producer_id,
                    stamp.epoch,
                    stamp.base_sequence,
                    waiting.record_count,
                    waiting.first_event_sequence,
                    waiting.last_event_sequence,
                    None,
                    waiting.last_ms if dated else number.timestamp_ms,
                    waiting.dated,
                    stamped(waiting.data, stamp, None if dated else number.timestamp_ms),
                )
            )

    def unacked(self) -> dict[tuple[str, int], tuple[BatchFrame, ...]]:
        """Per partition, in the order of acceptance, without the positions."""
        partitions: dict[tuple[str, int], list[BatchFrame]] = {}
        for batch in sorted(self.batches, key=lambda batch: batch.first_event_sequence):
            partitions.setdefault((batch.topic, batch.partition), []).append(batch)
        return {partition: tuple(batches) for partition, batches in partitions.items()}

    def next_sequence(self, topic: str, partition: int) -> int:
        """The sequence of the partition's next batch under the current identity."""
        state = self.numbering.get((topic, partition))
        if state is None or self.identity is None:
            return 0
        current = state[:2] == (self.identity.producer_id, self.identity.epoch)
        return state[2] if current else 0

    def _number(self, batch: BatchFrame) -> None:
        *_, through = self.numbering.get((batch.topic, batch.partition), (0,))
        self.numbering[batch.topic, batch.partition] = (
            batch.producer_id,
            batch.epoch,
            batch.base_sequence + batch.record_count,
            max(batch.last_event_sequence, through),
        )

    def _seen(self, event_sequence: int) -> None:
        self.next_event_sequence = max(self.next_event_sequence, event_sequence + 1)

    def _position(self, position: SourcePosition | None) -> None:
        if position is not None:
            self.positions[position.source] = position.value

    def _renew(self, renewal: Renewal) -> None:
        new = {restamp.key: restamp.new_base_sequence for restamp in renewal.restamps}
        self.identity = renewal.identity
        producer_id, epoch = renewal.identity.producer_id, renewal.identity.epoch
        self.batches = [
            restamped(batch, producer_id, epoch, new[batch.key]) if batch.key in new else batch
            for batch in self.batches
        ]
        for batch in sorted(self.batches, key=lambda batch: batch.base_sequence):
            if (batch.producer_id, batch.epoch) == (producer_id, epoch):
                self._number(batch)


def restamped(batch: BatchFrame, producer_id: int, epoch: int, base_sequence: int) -> BatchFrame:
    return msgspec.structs.replace(
        batch,
        producer_id=producer_id,
        epoch=epoch,
        base_sequence=base_sequence,
        data=stamped(batch.data, Stamp(producer_id, epoch, base_sequence)),
    )


def record_batch(stamp: Stamp, body: bytes, first_ms: int = 0, last_ms: int = 0) -> bytes:
    """Bytes with a record batch's header, which is all the journal looks at."""
    return stamped(batch_of(body, 0, first_ms=first_ms, last_ms=last_ms), stamp)
