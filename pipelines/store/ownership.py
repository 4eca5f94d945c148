"""Whose a checkpoint is at the moment: of several drivers one owns it, and the others stop.

Each life of a driver takes an *owner generation*: it creates the document with the next number,
which one process alone can do::

    owners/<generation>      who took it
    heartbeats/<generation>  written over each second, until that life says that it is over

Two rules; each covers what the other cannot:

- **At the start** a driver that finds the newest owner alive is refused, and told whose heartbeat
  that is. This is a courtesy, and may be wrong: a process that was paused looks dead.
- **Always** the generation decides. What a life writes is named after it, what it logs is created
  exclusively and holds its generation, and it deletes nothing of a newer one. A life that finds a
  newer owner, or another's document where its own was to stand, stops. So an older driver that
  wakes up can neither destroy nor log anything that the newer one relies on.

A heartbeat is a number that grows. Whether it does is watched by the watcher's clock alone, so
clocks of two machines need not agree.

A driver looks for a newer owner before each document that it logs. In a store each look costs a way
over the network, so there a look counts for as long as a heartbeat takes: for a driver that nobody
can have taken for dead. Its heartbeats have all been answered for twice the time after which one
is, and none was begun more than two beats after the one before. So a driver that was stopped, or
whose store did not answer, looks again before each document.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from functools import partial
from math import inf
from typing import TYPE_CHECKING, ClassVar, Final
from uuid import uuid4

from msgspec import Struct

from sequitur.base.process import ProcessIdentity
from sequitur.base.stored import dump, load
from sequitur.errors import CheckpointError, OwnershipError
from sequitur.pipelines.store.documents import read_document
from sequitur.pipelines.store.storage import is_remote

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.pipelines.store.storage import Storage


OWNERS_FOLDER: Final = "owners"
HEARTBEATS_FOLDER: Final = "heartbeats"
_OWNER_FORMAT: Final = 1
_BEAT_S: Final = 1.0
_STALE_S: Final = 5.0
"""A driver whose heartbeat stands still for so long is taken for dead."""
_LOOK_AGAIN_S: Final = 0.1
_KEPT: Final = 20


def _steady_s() -> float:
    """Return seconds of a clock that nobody sets and that goes on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class _Beat(Struct, frozen=True):
    TITLE: ClassVar = "heartbeat"

    count: int = 0
    at_ms: int = 0
    is_over: bool = False


class Ownership:
    """This process's hold on a checkpoint: an owner generation, and a heartbeat in a thread.

    `_newer` is set once, by the thread or by `check`, when there is an owner after us.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        beat_s: float = _BEAT_S,
        stale_s: float = _STALE_S,
        steady_s: Callable[[], float] = _steady_s,
    ) -> None:
        self._storage = storage
        self._is_far = is_remote(storage.location(""))
        self._beat_s = beat_s
        self._stale_s = stale_s
        self._steady_s = steady_s
        self._looked_s = self._beaten_s = self._beating_since_s = -inf
        self.life = uuid4().hex
        self.generation = 0
        self._count = 0
        self._newer: int | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_beating, name="heartbeat", daemon=True)

    @property
    def is_lost(self) -> bool:
        """Whether a newer owner was seen."""
        return self._newer is not None

    def take(self) -> None:
        for folder in (OWNERS_FOLDER, HEARTBEATS_FOLDER):
            self._storage.make_folder(folder)
        document = {"format": _OWNER_FORMAT, **dump(ProcessIdentity.own())}
        text = json.dumps({**document, "life": self.life, "taken_ms": _now_ms()}) + "\n"
        while True:
            newest = _newest(self._storage)
            refuse_if_owned(self._storage, stale_s=self._stale_s)
            if self._storage.create(_owner(newest + 1), text):
                break  # else another driver started at the same moment: it is alive
        self.generation = newest + 1
        self._beat()
        self._thread.start()
        for old in range(newest - _KEPT, 0, -1):
            if not self._storage.exists(_owner(old)):
                break
            self._storage.delete(_owner(old))
            self._storage.delete(_heartbeat(old))

    def check(self, *, may_know: bool = False) -> None:
        """Check, before anything is logged, that the folder is still owned.

        Args:
            may_know: Whether a look that still counts is enough.
        """
        if self._newer is None and not (may_know and self._look_counts()):
            self._look()
        if self._newer is not None:
            raise OwnershipError(
                f"{self._storage.root}: {_who(self._storage, self._newer)}, has taken this "
                f"checkpoint over (owner {self._newer}, we are {self.generation}). This "
                "process stops. The other one has seen all its work"
            )

    def release(self) -> None:
        """Say that this life is over, so that the next one need not wait."""
        if not self.generation or self._over.is_set():
            return
        self._over.set()
        self._thread.join(self._stale_s)
        if self._thread.is_alive():
            return  # the store does not answer, so the next start waits for a while
        with contextlib.suppress(OSError):  # the store does not answer
            self._write(_Beat(self._count, _now_ms(), is_over=True))

    def _keep_beating(self) -> None:
        while not self._over.wait(self._beat_s):
            # A checkpoint that cannot be written now may be later; logging a step reports it.
            with contextlib.suppress(OSError):
                self._look()
                if self._newer is not None:
                    return
                self._beat()

    def _look(self) -> None:
        begun_s = self._steady_s()
        newest = _newest(self._storage)
        if newest > self.generation:
            self._newer = newest
        else:
            self._looked_s = begun_s

    def _look_counts(self) -> bool:
        now_s = self._steady_s()
        beats = now_s - self._beaten_s <= 2 * self._beat_s
        beats &= now_s - self._beating_since_s >= 2 * self._stale_s
        return self._is_far and beats and now_s - self._looked_s < self._beat_s

    def _beat(self) -> None:
        self._count += 1
        begun_s = self._steady_s()
        self._write(_Beat(self._count, _now_ms()))
        if begun_s - self._beaten_s > 2 * self._beat_s:
            self._beating_since_s = self._steady_s()
        self._beaten_s = begun_s

    def _write(self, beat: _Beat) -> None:
        self._storage.replace(_heartbeat(self.generation), json.dumps(dump(beat)) + "\n")


def refuse_if_owned(storage: Storage, *, stale_s: float = _STALE_S, watches: bool = True) -> None:
    """Check that no living driver has a checkpoint."""
    generation = _newest(storage)
    if not generation:
        return
    owner = _owner_at(storage, generation)
    first = _beat_of(storage, generation)
    if first.is_over or (owner is not None and owner.is_gone()):
        return
    age_ms = _now_ms() - first.at_ms
    is_fresh = owner is not None and owner.is_near() and 0 <= age_ms < 1000 * stale_s
    last = first
    if watches and not is_fresh:
        last = _watched(storage, generation, first, stale_s)
    if is_fresh or (last.count != first.count and not last.is_over):
        ago_s = max(0.0, (_now_ms() - last.at_ms) / 1000)
        raise OwnershipError(
            f"{storage.root}: {_who(storage, generation)}, has this checkpoint, last seen "
            f"{ago_s:.0f} s ago: a checkpoint belongs to one job and one process. Stop that "
            "process, or give this job a checkpoint and an app of its own"
        )


def _watched(storage: Storage, generation: int, first: _Beat, stale_s: float) -> _Beat:
    """Return the heartbeat once it has changed, or after `stale_s`."""
    deadline_s = time.monotonic() + stale_s
    last = first
    while last == first and time.monotonic() < deadline_s:
        time.sleep(_LOOK_AGAIN_S)
        last = _beat_of(storage, generation)
    return last


def _who(storage: Storage, generation: int) -> str:
    owner = _owner_at(storage, generation)
    return "another process" if owner is None else str(owner)


def _newest(storage: Storage) -> int:
    return max((int(n) for n in storage.names(OWNERS_FOLDER) if n.isdecimal()), default=0)


def _beat_of(storage: Storage, generation: int) -> _Beat:
    found = None
    with contextlib.suppress(OSError, CheckpointError):
        found = read_document(storage, _heartbeat(generation), partial(load, _Beat))
    return found or _Beat()  # it is about to be written, or its process died first


def _owner_at(storage: Storage, generation: int) -> ProcessIdentity | None:
    """Return the process that is the owner; None if it is not known."""
    with contextlib.suppress(CheckpointError):
        return read_document(storage, _owner(generation), partial(load, ProcessIdentity))
    return None


def _owner(generation: int) -> str:
    return f"{OWNERS_FOLDER}/{generation:012d}"


def _heartbeat(generation: int) -> str:
    return f"{HEARTBEATS_FOLDER}/{generation:012d}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
