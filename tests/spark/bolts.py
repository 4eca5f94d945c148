"""Topologies for tests of the process job: their bolts stand in a module that tasks can import."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sequitur.consumer.topology import BasicBolt, BatchBolt, Bolt, Topology, TopologyBuilder, bolt
from tests.support.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sequitur.consumer.topology import BasicOutputCollector, Event, Tuple
    from sequitur.consumer.topology.api.bolt import BaseBolt
    from sequitur.consumer.topology.step.tasks import AckerTask


def payload(event: Event) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(event.value or b"")
    return found


def die(marker: str, times: int = 1) -> None:
    """Be killed, unless that has happened so often already."""
    path = Path(marker)
    deaths = path.stat().st_size if path.exists() else 0
    if deaths < times:
        path.write_text("+" * (deaths + 1))
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class DyingAcker:
    """An acker whose process dies once."""

    task: AckerTask
    marker: str

    def __call__(self) -> Any:
        die(self.marker)
        return self.task()


@bolt(fields=("key", "value"))
def enrich(event: Event) -> Iterator[Any]:
    """Pass on what is not broken; `fails` attempts fail before one succeeds."""
    found = payload(event)
    if event.attempt <= found.get("fails", 0):
        raise ValueError(f"attempt {event.attempt}")
    if found.get("hangs"):
        time.sleep(60)
    if found.get("kills"):
        ctypes.string_at(0)
    if found.get("exits"):
        sys.exit(3)
    if "dies" in found:
        die(found["dies"], found["times"])
    yield event.key, event.value


@bolt(fields=("key", "value"))
def enrich_all(event: Event) -> Iterator[Any]:
    """As `enrich`, but nothing is broken any more."""
    yield event.key, event.value


@bolt(fields=("key", "value"))
def refuse(given: Tuple) -> None:
    if given.attempt <= json.loads(given["value"]).get("fails", 0):
        raise ValueError(f"attempt {given.attempt}")


@bolt(fields=("key", "value"))
def mark(given: Tuple) -> Iterator[Any]:
    yield given["key"], json.dumps({**json.loads(given["value"]), "attempt": given.attempt})


class Split(BasicBolt):
    """Words of a sentence."""

    fields = ("word", "number")

    def process(self, given: Tuple, collector: BasicOutputCollector, /) -> None:
        found = json.loads(given["value"])
        for number, word in enumerate(found["text"].split()):
            collector.emit((word, number))


class Count(Bolt):
    """How often each word was there, over all batches."""

    fields = ("word", "count")

    def prepare(self, context: Any, collector: Any) -> None:
        super().prepare(context, collector)
        self.counts: Counter[str] = Counter()

    def process(self, given: Tuple, /) -> None:
        """Count a word; the word `bad` is refused while it is young."""
        if given["word"] == "bad" and given.attempt == 1:
            self.collector.fail(given, "a bad word")
            return
        self.counts[given["word"]] += 1
        self.collector.emit((given["word"], self.counts[given["word"]]), given)
        self.collector.ack(given)

    def snapshot(self) -> Any:
        return dict(self.counts)

    def restore(self, state: Any) -> None:
        self.counts.update(state)


class Pairs(BatchBolt):
    """Joins events of one `id` within a batch, anchored to all of them; some are never acked."""

    fields = ("key", "value")

    def prepare(self, context: Any, collector: Any) -> None:
        super().prepare(context, collector)
        self.held: dict[str, list[Tuple]] = {}

    def process(self, given: Tuple, /) -> None:
        self.held.setdefault(json.loads(given["value"])["id"], []).append(given)

    def finish_batch(self) -> None:
        """Emit and ack pairs; leave the others to their fate."""
        for name, several in self.held.items():
            if len(several) > 1:
                self.collector.emit((name, len(several)), several)
                for given in several:
                    self.collector.ack(given)


class Forgetful(Bolt):
    """Counts, and forgets all as soon as it has counted to two."""

    fields = ("key", "value")

    def prepare(self, context: Any, collector: Any) -> None:
        super().prepare(context, collector)
        self.count = 0

    def process(self, given: Tuple, /) -> None:
        self.count += 1
        self.collector.emit((given["key"], self.count), given)
        self.collector.ack(given)

    def snapshot(self) -> Any:
        return self.count if self.count < 2 else None

    def restore(self, state: Any) -> None:
        self.count = state


class Endless(BatchBolt):
    """Never finishes its batch."""

    def process(self, given: Tuple, /) -> None:
        """Hold it, and do not ack it."""

    def finish_batch(self) -> None:
        time.sleep(60)


class Unready(Bolt):
    """Cannot get ready."""

    def prepare(self, context: Any, collector: Any) -> None:
        del context, collector
        raise ConnectionRefusedError("no database")

    def process(self, given: Tuple, /) -> None:
        """Never called."""


class Unfinished(BasicBolt):
    """Sums up a batch, and cannot finish one with what is bad."""

    fields = ("key", "value")

    def prepare(self, context: Any, collector: Any) -> None:
        super().prepare(context, collector)
        self.given: list[bool] = []

    def process(self, given: Tuple, collector: Any, /) -> None:
        del collector
        self.given.append(bool(json.loads(given["value"]).get("is_bad")))

    def finish_batch(self) -> None:
        """Emit how many there were, or fail."""
        given, self.given = self.given, []
        if given:
            self.collector.emit(("sum", {"n": len(given)}))
        if any(given):
            raise ConnectionResetError("database gone")


def one_bolt(bolt: BaseBolt, *, tasks: int | None) -> Topology:
    builder = TopologyBuilder("one-bolt")
    builder.set_spout("events")
    builder.set_bolt("only", bolt, tasks).fields_grouping("events", "key")
    if bolt.fields:
        builder.set_output("out").local_grouping("only")
    return builder.build()


def pairs_and_more() -> Topology:
    """A join in one task, and beside it a bolt that may fail."""
    builder = TopologyBuilder("pairs-and-more")
    builder.set_spout("events")
    builder.set_bolt("join", Pairs(), 1).global_grouping("events")
    builder.set_output("out").local_grouping("join")
    builder.set_bolt("refuse", refuse).local_grouping("events")
    return builder.build()


def pairs_here() -> Topology:
    builder = TopologyBuilder("pairs-here")
    builder.set_spout("events")
    builder.set_bolt("join", Pairs()).local_grouping("events")
    builder.set_output("out").local_grouping("join")
    builder.set_bolt("refuse", refuse).local_grouping("events")
    return builder.build()


class SilentWindows(BasicBolt):
    """Counts the events of windows of 10 s; closes at a tick those that the watermark has passed.

    It writes down in which process and for which task it is prepared.
    """

    fields = ("key", "value")

    def prepare(self, context: Any, collector: Any) -> None:
        super().prepare(context, collector)
        self.counts: Counter[int] = Counter()
        with Path(context.config["prepared"]).open("a") as file:
            file.write(f"{os.getpid()} {context.component} {context.task}\n")

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        """Take an event in, or close windows."""
        if not tuple.is_tick:
            self.counts[tuple.event_time_ms // 10_000] += 1
            return
        with Path(self.context.config["ticks"]).open("a") as file:
            file.write("+")
        watermark_ms = self.context.watermark_ms or 0
        for window in [one for one in self.counts if (one + 1) * 10_000 <= watermark_ms + 1]:
            found = {"at": window * 10_000, "count": self.counts.pop(window)}
            collector.emit(("window", json.dumps(found)))

    def snapshot(self) -> Any:
        return self.counts or None

    def restore(self, state: Any) -> None:
        self.counts = state


class Pooled(BasicBolt):
    """Keeps no state, and writes down where it is prepared."""

    fields = ("key", "value")

    def prepare(self, context: Any, collector: Any) -> None:
        super().prepare(context, collector)
        with Path(context.config["prepared"]).open("a") as file:
            file.write(f"{os.getpid()} {context.component} {context.task}\n")

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        collector.emit((tuple["key"], tuple["value"]))


def silent_windows(folder: Path) -> Topology:
    """Windows that close while nothing comes."""
    config = {"prepared": str(folder / "prepared"), "ticks": str(folder / "ticks")}
    builder = TopologyBuilder("windows", config=config)
    builder.set_spout("events")
    builder.set_bolt("pooled", Pooled()).local_grouping("events")
    windows = builder.set_bolt("windows", SilentWindows(), tick_interval="200 ms")
    windows.local_grouping("pooled")
    builder.set_output("out").local_grouping("windows")
    return builder.build()


def chain() -> Topology:
    builder = TopologyBuilder("chain")
    builder.set_spout("events")
    builder.set_bolt("enrich", enrich).local_grouping("events")
    builder.set_bolt("mark", mark).local_grouping("enrich")
    builder.set_output("out").local_grouping("mark")
    return builder.build()


def spread() -> Topology:
    """The same two bolts, the second in tasks of its own."""
    builder = TopologyBuilder("spread")
    builder.set_spout("events")
    builder.set_bolt("enrich", enrich, 3).shuffle_grouping("events")
    builder.set_bolt("mark", mark, 2).fields_grouping("enrich", "key")
    builder.set_output("out").local_grouping("mark")
    return builder.build()


def word_count() -> Topology:
    builder = TopologyBuilder("word-count")
    builder.set_spout("sentences")
    builder.set_bolt("split", Split(), 2).shuffle_grouping("sentences")
    builder.set_bolt("count", Count(), 3).fields_grouping("split", "word")
    builder.set_output("counts", key="word", value="count").local_grouping("count")
    return builder.build()


def pairs() -> Topology:
    builder = TopologyBuilder("pairs")
    builder.set_spout("events")
    builder.set_bolt("join", Pairs(), 1).global_grouping("events")
    builder.set_output("out").local_grouping("join")
    return builder.build()


def branches() -> Topology:
    """An output, and beside it a bolt that may fail."""
    builder = TopologyBuilder("branches")
    builder.set_spout("events")
    builder.set_bolt("mark", enrich_all).local_grouping("events")
    builder.set_output("out").local_grouping("mark")
    builder.set_bolt("refuse", refuse).local_grouping("mark")
    return builder.build()


def forgiving(make: Callable[[], Topology]) -> Topology:
    """A topology whose `enrich` was mended."""
    topology = make()
    mended = replace(topology.components["enrich"], bolt=enrich_all)
    return replace(topology, components={**topology.components, "enrich": mended})


class WaitsForFile(BasicBolt):
    """Waits in its calls until a file is there; that of the task prepared first, for another one.

    Args:
        path: What most wait for.
        first: What the first one waits for.
    """

    fields = ("key", "value")

    def __init__(self, path: Path, first: Path) -> None:
        self._path = path
        self._first = first

    def prepare(self, context: Any, collector: Any) -> None:
        super().prepare(context, collector)
        with contextlib.suppress(FileExistsError):
            self._first.with_suffix(".taken").touch(exist_ok=False)
            self._path = self._first

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        while not self._path.exists():
            time.sleep(0.05)
        collector.emit((tuple["key"], tuple["value"]))


def waiting_for(path: Path, first: Path) -> Topology:
    builder = TopologyBuilder("waiting")
    builder.set_spout("events")
    builder.set_bolt("wait", WaitsForFile(path, first)).local_grouping("events")
    builder.set_output("out").local_grouping("wait")
    return builder.build()
