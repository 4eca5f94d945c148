"""Topologies of one keyed bolt, with what fails in them, for tests of windows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from zlib import crc32

from sequitur.consumer.topology import BasicBolt, ProcessSettings, TopologyBuilder, TopologyTester
from sequitur.consumer.topology.api.builder import EVENT_FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sequitur.consumer.topology import BaseBolt, Event, Topology, Tuple


class OneKey(BasicBolt):
    """Gives all events one key."""

    fields = EVENT_FIELDS

    def process(self, tuple: Tuple, _: Any) -> Any:  # noqa: A002
        yield (b"a", *tuple.values[1:])


class PassOn(BasicBolt):
    """Puts out each tuple as a mapping, and fails the first attempts at some."""

    fields = ("key", "result")

    def __init__(self, every: int) -> None:
        self.every = every

    def process(self, tuple: Tuple, _: Any) -> Any:  # noqa: A002
        found = tuple.as_dict()
        chosen = crc32(repr(found).encode())
        if self.every and tuple.attempt < 3 and chosen % self.every == 0:
            raise ValueError("a reader fails")
        key = found.pop("key")
        yield key, {name: _shown(one) for name, one in found.items()}


def _shown(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def usage(event: Event) -> Any:
    """Return an event's usage, once its attempt is high enough."""
    value = json.loads(event.value or b"")
    if event.attempt <= value["fails"]:
        raise ValueError("an event fails")
    return value["usage"]


def windows_tester(
    bolt: BaseBolt, *streams: str, every: int = 0, keyed: BaseBolt | None = None
) -> TopologyTester:
    """Return a tester of `windows_topology`."""
    settings = ProcessSettings(max_attempts=0, retry_jitter=0, retry_factor=1)
    return TopologyTester(windows_topology(bolt, *streams, every=every, keyed=keyed), settings)


def windows_topology(
    bolt: BaseBolt, *streams: str, every: int = 0, keyed: BaseBolt | None = None
) -> Topology:
    """Return a topology that puts out what a bolt emits, on these streams, too.

    Args:
        bolt: The bolt.
        streams: Streams beside the default one; each is an output of its name.
        every: One of so many of its tuples fails twice in its reader; 0: none.
        keyed: A bolt that gives events another key; None: the key that they have.
    """
    builder = TopologyBuilder("windows")
    builder.set_spout("events")
    if keyed is not None:
        builder.set_bolt("keyed", keyed).local_grouping("events")
    read = "events" if keyed is None else "keyed"
    builder.set_bolt("tested", bolt).fields_grouping(read, "key")
    builder.set_bolt("pass on", PassOn(every)).local_grouping("tested")
    builder.set_output("results", "results", value="result").local_grouping("pass on")
    for stream in streams:
        builder.set_output(stream, stream).local_grouping("tested", stream)
    return builder.build()


def run(
    tester: TopologyTester, batches: Iterable[Sequence[Any]], *, until_ms: int, retries: str = ""
) -> None:
    """Run batches, then those of a watermark that closes all windows.

    Args:
        tester: The tester.
        batches: Events by batch.
        until_ms: The watermark at the end.
        retries: For each batch "r" if all that waits is tried again after it, another letter if
            not. What is missing is not.
    """
    for number, several in enumerate(batches):
        tester.run(several)
        if retries[number : number + 1] == "r":
            tester.retry_all()
    tester.retry_all()
    tester.run(watermark_ms=until_ms)
    tester.retry_all()
    tester.run(watermark_ms=until_ms)


def results_of(tester: TopologyTester, output: str = "results") -> dict[bytes, list[Any]]:
    """Return the values of an output by key, in their order."""
    found: dict[bytes, list[Any]] = {}
    for key, value in tester.records(output):
        found.setdefault(key or b"", []).append(json.loads(value or b"null"))
    return found
