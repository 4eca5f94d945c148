"""Sessions of each key, with state and timers, whose calls fail now and then: for kill rounds.

Each event comes out with its place in its key's session. A timer ends the session after a gap, and
it comes out in the topic `SESSIONS_TOPIC`. If `GROUPS_TOPIC` is set, events are counted by another
field in a stage of its own, and each window comes out there.

A job merges files of keys early. The file `MERGE_WRITES` may hold a number: at so many writes of
merges, the syncs of whole files included, the job is killed. The file is then gone.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from sequitur import KeyedBolt, TopologyBuilder, bolt
from sequitur.pipelines.store.storage import sync
from sequitur.pipelines.topology import key_files
from sequitur.pipelines.topology.key_table import KeyTableWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur import Event, Key, Timer, Tuple

GAP_MS = 300
WINDOW_MS = 500
GROUPS = 3


class Session(Struct):
    begin_ms: int
    last_ms: int
    count: int


class Sessions(KeyedBolt):
    """Fails 1 % of events, and one session of eight, at the first attempt, after the change."""

    fields = ("key", "value")
    streams = {"ended": ("key", "session")}  # noqa: RUF012 - nobody changes it
    state = Session

    def process(self, event: Event, key: Key) -> None:
        given = json.loads(event.value or b"")
        at_ms = event.event_time_ms
        begin_ms, count = (key.state.begin_ms, key.state.count) if key.state else (at_ms, 0)
        key.state = Session(begin_ms, at_ms, count + 1)
        key.timer("end", at=at_ms + GAP_MS)
        key.emit((key.value, {**given, "count": count + 1, "begin": begin_ms}))
        if given["n"] % 100 == 7 and event.attempt == 1:
            raise ValueError("not yet")
        if given["n"] % 1000 == 500:
            raise ValueError("never")

    def on_timer(self, timer: Timer, key: Key) -> None:
        session, key.state = key.state, None
        key.emit((key.value, [session.begin_ms, session.last_ms, session.count]), "ended")
        if timer.at_ms // 10 % 8 == 0 and timer.attempt == 1:
            raise ValueError("not yet")


@bolt(fields=("key", "value"))
def settle(given: Tuple) -> Iterator[Any]:
    """Fail 1 % of events at their first attempt, in another stage."""
    if given["value"]["n"] % 100 == 53 and given.attempt == 1:
        raise ValueError("not here yet")
    yield given["key"], given["value"]


@bolt(fields=("group", "at", "n"))
def grouped(given: Tuple) -> Iterator[Any]:
    value = given["value"]
    yield value["n"] % GROUPS, value["at"], value["n"]


class Windows(KeyedBolt):
    """Counts the events of each window of a group; a window of eight fails at the first attempt."""

    fields = ("group", "window", "n")
    streams = {"closed": ("group", "window")}  # noqa: RUF012 - nobody changes it
    state = dict[int, int]

    def process(self, given: Tuple, key: Key) -> None:
        window = given["at"] // WINDOW_MS
        counts = {**(key.state or {})}
        counts[window] = counts.get(window, 0) + 1
        key.state = counts
        key.timer(str(window), at=(window + 1) * WINDOW_MS)
        key.emit((key.value, window, given["n"]))

    def on_timer(self, timer: Timer, key: Key) -> None:
        counts = {**key.state}
        key.emit((str(key.value), [int(timer.name), counts.pop(int(timer.name))]), "closed")
        key.state = counts
        if int(timer.name) % 8 == 0 and timer.attempt == 1:
            raise ValueError("not yet")


@bolt(fields=("n",))
def beside(given: Tuple) -> None:
    """Fail 1 % of events at their first attempt, in a stage that reads the windows."""
    if given["n"] % 100 == 31 and given.attempt == 1:
        raise ValueError("not here yet")


class _DyingWriter(KeyTableWriter):
    def __init__(self, file: Any, *given: Any, **more: Any) -> None:
        super().__init__(_DyingFile(file), *given, **more)


class _DyingFile:
    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, content: Any) -> None:
        _die_in_time()
        self._file.write(content)


def _dying_sync(path: Any) -> None:
    _die_in_time()
    sync(path)


def _die_in_time() -> None:
    left = Path(os.environ.get("MERGE_WRITES", ""))
    if not threading.current_thread().name.startswith("key-merges") or not left.is_file():
        return
    count = int(left.read_text()) - 1
    left.write_text(str(count))
    if not count:
        left.unlink()
        os.killpg(os.getpgrp(), signal.SIGKILL)


if "SESSIONS_TOPIC" in os.environ:  # a job, and not who looks at what it wrote
    vars(key_files).update(
        KeyTableWriter=_DyingWriter,
        sync=_dying_sync,
        _INTO_BASE_BYTES=1 << 13,
        _MOST_CHANGES=4,
        _JOINED_AT_LEAST=2,
    )

builder = TopologyBuilder("keyed")
builder.set_spout("events")
builder.set_bolt("sessions", Sessions()).fields_grouping("events", "key")
builder.set_bolt("settle", settle, 2).fields_grouping("sessions", "key")
builder.set_output("out").local_grouping("settle")
ended = builder.set_output(
    "ended", topic=os.environ.get("SESSIONS_TOPIC", "sessions"), key="key", value="session"
)
ended.local_grouping("sessions", "ended")
if groups_topic := os.environ.get("GROUPS_TOPIC"):
    builder.set_bolt("grouped", grouped).local_grouping("sessions")
    builder.set_bolt("windows", Windows(), 2).fields_grouping("grouped", "group")
    builder.set_bolt("beside", beside, 2).fields_grouping("windows", "n")
    closed = builder.set_output("closed", topic=groups_topic, key="group", value="window")
    closed.local_grouping("windows", "closed")
topology = builder.build()
