"""What the producer takes, and what a restart takes: memory, journal, time.

    python -m benchmarks.producer_limits

- **Memory**: 10,000,000 records by `send_many`; what the process holds on the way. In between the
  broker is paused, so that what is on its way grows until it holds the sender back; the most that
  the journal ever took stands beside its limit.
- **Restart**: 64 MiB of events are journaled while the broker is paused, then the process is
  killed. The next one is timed from its construction until it is started, and until each of those
  events is confirmed. The topic must then hold each once.

The broker is embedded always, as it has to be paused. Prints a table, and writes
build/bench/producer_limits.json: a list of name, value, unit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.table import Table

from benchmarks.producer_contenders import HEADERS, records
from sequitur.embedded import EmbeddedBroker
from sequitur.producer import IdempotentProducer, KafkaSettings, ProducerSettings, Record

if TYPE_CHECKING:
    from collections.abc import Iterator

OUTPUT: Final = Path("build/bench/producer_limits.json")
PARTITIONS: Final = 4
RECORDS: Final = 10_000_000
JOURNAL_LIMIT_BYTES: Final = 96 << 20
RESTART_LIMIT_BYTES: Final = 512 << 20
UNACKED_BYTES: Final = 64 << 20
_PAUSE_AFTER: Final = 2_000_000
_PAUSE_S: Final = 3.0
_SAMPLE_S: Final = 0.05
_MILLION: Final = 1_000_000
_VALUE_BYTES: Final = 10_000
_CHUNK: Final = 100


def _producer(
    bootstrap_servers: str, journal: Path, limit_bytes: int = RESTART_LIMIT_BYTES
) -> IdempotentProducer:
    settings = ProducerSettings(name="bench", journal=journal, journal_limit=limit_bytes)
    return IdempotentProducer(KafkaSettings(bootstrap_servers=bootstrap_servers), settings)


def _bytes_in(folder: Path) -> int:
    total = 0
    for file in folder.iterdir():
        try:
            total += file.stat().st_size
        except FileNotFoundError:  # a segment that was reclaimed meanwhile
            continue
    return total


def _say(**said: Any) -> None:
    print(json.dumps(said), flush=True)


async def _send(bootstrap_servers: str, journal: Path, topic: str) -> None:
    """Send RECORDS, and say how it goes, again and again."""
    process = psutil.Process()
    async with _producer(bootstrap_servers, journal, JOURNAL_LIMIT_BYTES) as producer:
        events = (Record(value, key, HEADERS) for key, value in records(RECORDS))
        sending = asyncio.ensure_future(producer.send_many(topic, events))
        while True:
            persisted = producer.statistics().persisted
            _say(
                persisted=persisted,
                memory_bytes=process.memory_info().rss,
                journal_bytes=_bytes_in(journal),
            )
            if persisted == RECORDS:
                break
            await asyncio.sleep(_SAMPLE_S)
        result = await (await sending)
    assert result.persisted == RECORDS, result


async def _hold(bootstrap_servers: str, journal: Path, topic: str) -> None:
    """Send one event, wait for a line, journal UNACKED_BYTES more, and wait to be killed."""
    async with _producer(bootstrap_servers, journal) as producer:
        await (await producer.accept(topic, [Record(b"the first")]))
        _say(state="ready")
        await asyncio.to_thread(sys.stdin.readline)
        kept = 0
        while _bytes_in(journal) < UNACKED_BYTES:
            events = [Record(os.urandom(_VALUE_BYTES), b"%d" % number) for number in range(_CHUNK)]
            await (await producer.accept(topic, events)).journaled
            kept += len(events)
        _say(kept=kept, journal_bytes=_bytes_in(journal))
        await asyncio.to_thread(sys.stdin.readline)


async def _resume(bootstrap_servers: str, journal: Path) -> None:
    """Start on what `_hold` left, and time it."""
    begun_s = time.perf_counter()
    producer = _producer(bootstrap_servers, journal)
    await producer.start()
    started_s = time.perf_counter() - begun_s
    await producer.flush()
    confirmed_s = time.perf_counter() - begun_s
    seen = producer.statistics()
    await producer.close()
    _say(
        started_s=started_s,
        confirmed_s=confirmed_s,
        recovered=seen.recovered,
        persisted=seen.persisted,
    )


class Limits:
    """Measures on one broker of its own.

    Args:
        broker: The broker; it will be paused.
        folder: Holds the journals.
    """

    def __init__(self, broker: EmbeddedBroker, folder: Path) -> None:
        self._broker = broker
        self._folder = folder
        self._figures: list[dict[str, Any]] = []

    def measure(self) -> list[dict[str, Any]]:
        """Everything; a list of name, value and unit."""
        self._memory()
        self._restart()
        return self._figures

    def _memory(self) -> None:
        topic = self._new_topic("memory")
        paused_until_s: float | None = None
        seen: list[dict[str, Any]] = []
        with self._child("send", self._folder / "memory", topic) as child:
            try:
                for line in _lines(child):
                    seen.append(line)
                    now_s = time.monotonic()
                    if paused_until_s is None and line["persisted"] >= _PAUSE_AFTER:
                        self._broker.pause()
                        paused_until_s = now_s + _PAUSE_S
                    elif paused_until_s is not None and now_s >= paused_until_s:
                        self._broker.resume()
                        paused_until_s = float("inf")
            finally:
                self._broker.resume()
        self._check(child.returncode == 0, "the sender failed")
        self._check(self._count(topic) == RECORDS, "the topic does not hold each record once")
        for millions in (1, 3, 6, 10):
            then = next(line for line in seen if line["persisted"] >= millions * _MILLION)
            self._figure(f"memory after {millions} M records", then["memory_bytes"] / 2**20, "MiB")
        self._figure("most memory", max(s["memory_bytes"] for s in seen) / 2**20, "MiB")
        self._figure("most journal", max(s["journal_bytes"] for s in seen) / 2**20, "MiB")
        self._figure("journal_limit", JOURNAL_LIMIT_BYTES / 2**20, "MiB")

    def _restart(self) -> None:
        topic = self._new_topic("restart")
        journal = self._folder / "restart"
        with self._child("hold", journal, topic) as child:
            lines = _lines(child)
            next(lines)
            self._broker.pause()
            try:
                self._go_on(child)
                held = next(lines)
                child.kill()
            finally:
                self._broker.resume()
        with self._child("resume", journal, topic) as child:
            (took,) = list(_lines(child))
        expected = held["kept"] + 1
        self._check(self._count(topic) == expected, f"{topic} does not hold {expected} events")
        self._check(took["recovered"] == took["persisted"] == held["kept"], f"{took}, {held}")
        self._figure("restart: un-acked", held["journal_bytes"] / 2**20, "MiB")
        self._figure("restart: until it takes events", took["started_s"], "s")
        self._figure("restart: until all is confirmed", took["confirmed_s"], "s")

    def _child(self, what: str, journal: Path, topic: str) -> subprocess.Popen[str]:
        journal.mkdir(exist_ok=True)
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.producer_limits", what, str(journal), topic],
            env={**os.environ, "KAFKA_BOOTSTRAP_SERVERS": self._broker.bootstrap_servers},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def _go_on(self, child: subprocess.Popen[str]) -> None:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()

    def _figure(self, name: str, value: float, unit: str) -> None:
        self._figures.append({"name": name, "value": round(value, 2), "unit": unit})

    def _check(self, holds: bool, what: str) -> None:
        if not holds:
            raise RuntimeError(what)

    def _new_topic(self, name: str) -> str:
        admin = AdminClient({"bootstrap.servers": self._broker.bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result()
        return name

    def _count(self, topic: str) -> int:
        servers = self._broker.bootstrap_servers
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "log_level": 0})
        try:
            return sum(
                consumer.get_watermark_offsets(TopicPartition(topic, partition))[1]
                for partition in range(PARTITIONS)
            )
        finally:
            consumer.close()


def _lines(child: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert child.stdout is not None
    for line in child.stdout:
        yield json.loads(line)
    child.wait()


def measure(console: Console) -> None:
    """Measure, print and write."""
    with (
        tempfile.TemporaryDirectory(prefix="sequitur-bench-") as folder,
        EmbeddedBroker(Path(folder) / "broker") as broker,
    ):
        figures = Limits(broker, Path(folder)).measure()
    table = Table(title="What the producer takes", title_justify="left")
    for column in ("", "value", "unit"):
        table.add_column(column, justify="right" if column == "value" else "left")
    for figure in figures:
        table.add_row(figure["name"], f"{figure['value']:,.2f}", figure["unit"])
    console.print(table)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(figures, indent=2) + "\n")


def main() -> None:
    """Measure, or be one of the processes that are measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=["send", "hold", "resume"])
    parser.add_argument("journal", nargs="?", type=Path)
    parser.add_argument("topic", nargs="?")
    given = parser.parse_args()
    servers = os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "")
    if given.what is None:
        measure(Console())
    elif given.what == "send":
        asyncio.run(_send(servers, given.journal, given.topic))
    elif given.what == "hold":
        asyncio.run(_hold(servers, given.journal, given.topic))
    else:
        asyncio.run(_resume(servers, given.journal))


if __name__ == "__main__":
    main()
