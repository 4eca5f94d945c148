"""One contender of the producer benchmark, in a process of its own.

    python -m benchmarks.producer_contenders NAME throughput TOPIC RECORDS
    python -m benchmarks.producer_contenders NAME latency TOPIC RECORDS

Every contender sends the same records under the same guarantees: idempotent, acks=all, lz4, a key
and a header each. What each is allowed beyond that is what its own documentation recommends for
throughput. kafka-python is not among the project's packages: `benchmarks.peers` has its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import resource
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

KEYS: Final = [b"host-%03d|%d" % (n // 4, n % 4) for n in range(1000)]
VALUE_BYTES: Final = 120
LATENCY_RATE_HZ: Final = 5_000
LATENCY_WARM_UP_SECONDS: Final = 2
LINGER_MS: Final = 5
_CHUNK: Final = 10_000
_TICK_S: Final = 0.001


def _value(number: int) -> bytes:
    reading = b'{"hostname":"host-%03d","cpu":%d,"usage":%06.2f,"occurred_at":%d,"note":"' % (
        number // 4, number % 4, number * 37.61 % 100, 1_700_000_000_000 + number * 7919
    )  # fmt: skip
    return reading + b"x" * (VALUE_BYTES - len(reading) - 2) + b'"}'


VALUES: Final = [_value(number) for number in range(1000)]
HEADERS: Final[Any] = [("trace", b"0123456789abcdef")]


def records(count: int) -> Iterator[tuple[bytes, bytes]]:
    """Key and value of each record."""
    for number in range(count):
        yield KEYS[number % 1000], VALUES[number * 7 % 1000]


@dataclass(frozen=True, slots=True)
class Contender:
    """How one client sends.

    Attributes:
        modules: What has to be imported for it; the clock starts behind that.
        throughput: Sends so many records as fast as it can; returns when all are confirmed.
        latency: Sends so many records at a fixed rate; the latency of each, seconds.
    """

    modules: tuple[str, ...]
    throughput: Callable[[str, int], None]
    latency: Callable[[str, int], list[float]]


def bootstrap_servers() -> str:
    """The brokers under test."""
    return os.environ["KAFKA_BOOTSTRAP_SERVERS"]


def _librdkafka() -> dict[str, Any]:
    return {
        "log_level": 0,  # what fails is raised
        "bootstrap.servers": bootstrap_servers(),
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": LINGER_MS,
        "compression.type": "lz4",
        "partitioner": "murmur2_random",
        "queue.buffering.max.messages": 1_000_000,
        "batch.num.messages": 10_000,
    }


async def _at_rate(count: int, send: Callable[[bytes, bytes], Awaitable[None]]) -> list[float]:
    """Send at LATENCY_RATE_HZ, each on its own; from the moment it was due to its confirmation."""
    latencies: list[float] = []
    tasks: set[asyncio.Task[None]] = set()
    events = list(records(count))
    start_s = time.perf_counter()

    async def one(number: int) -> None:
        due_s = start_s + number / LATENCY_RATE_HZ
        await send(*events[number])
        latencies.append(time.perf_counter() - due_s)

    for number in range(count):
        while time.perf_counter() < start_s + number / LATENCY_RATE_HZ:  # noqa: ASYNC110 - a clock
            await asyncio.sleep(_TICK_S)
        task = asyncio.create_task(one(number))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    return latencies


def _confluent_throughput(topic: str, count: int) -> None:
    from confluent_kafka import Producer  # noqa: PLC0415 - each process loads one client

    producer = Producer(_librdkafka())
    failed: list[str] = []

    def delivered(error: Any, _message: Any) -> None:
        if error is not None:
            failed.append(str(error))

    for number, (key, value) in enumerate(records(count)):
        producer.produce(topic, key=key, value=value, headers=HEADERS, on_delivery=delivered)
        if number & 1023 == 0:
            producer.poll(0)
    producer.flush()
    assert not failed, failed[:3]


def _confluent_latency(topic: str, count: int) -> list[float]:
    from confluent_kafka import Producer  # noqa: PLC0415

    producer = Producer(_librdkafka())
    latencies: list[float] = []
    start_s = time.perf_counter()

    def delivered(due_s: float) -> Callable[[Any, Any], None]:
        def on_delivery(error: Any, _message: Any) -> None:
            assert error is None, error
            latencies.append(time.perf_counter() - due_s)

        return on_delivery

    for number, (key, value) in enumerate(records(count)):
        due_s = start_s + number / LATENCY_RATE_HZ
        while time.perf_counter() < due_s:
            producer.poll(_TICK_S)
        producer.produce(topic, key=key, value=value, headers=HEADERS, on_delivery=delivered(due_s))
    producer.flush()
    return latencies


async def _aio_throughput(topic: str, count: int) -> None:
    from confluent_kafka.aio import AIOProducer  # noqa: PLC0415

    # Its batch path refuses headers, so it sends none: less work than the others do.
    producer = AIOProducer(_librdkafka(), batch_size=1000)
    deliveries = []
    for key, value in records(count):
        deliveries.append(await producer.produce(topic, value=value, key=key))
        if len(deliveries) >= _CHUNK:
            await producer.flush()
            await asyncio.gather(*deliveries)
            deliveries = []
    await producer.flush()
    await asyncio.gather(*deliveries)
    await producer.close()


async def _aio_latency(topic: str, count: int) -> list[float]:
    from confluent_kafka.aio import AIOProducer  # noqa: PLC0415

    producer = AIOProducer(_librdkafka(), batch_size=100, buffer_timeout=0.005)

    async def send(key: bytes, value: bytes) -> None:
        await (await producer.produce(topic, value=value, key=key))

    latencies = await _at_rate(count, send)
    await producer.close()
    return latencies


def _aiokafka() -> Any:
    from aiokafka import AIOKafkaProducer  # noqa: PLC0415

    return AIOKafkaProducer(
        bootstrap_servers=bootstrap_servers(),
        enable_idempotence=True,
        acks="all",
        linger_ms=LINGER_MS,
        compression_type="lz4",
        max_batch_size=262_144,
    )


async def _aiokafka_throughput(topic: str, count: int) -> None:
    producer = _aiokafka()
    await producer.start()
    deliveries = []
    for key, value in records(count):
        deliveries.append(await producer.send(topic, value, key, headers=HEADERS))
        if len(deliveries) >= _CHUNK:
            await asyncio.gather(*deliveries)
            deliveries = []
    await asyncio.gather(*deliveries)
    await producer.stop()


async def _aiokafka_latency(topic: str, count: int) -> list[float]:
    producer = _aiokafka()
    await producer.start()

    async def send(key: bytes, value: bytes) -> None:
        await producer.send_and_wait(topic, value, key, headers=HEADERS)

    latencies = await _at_rate(count, send)
    await producer.stop()
    return latencies


def _kafka_python() -> Any:
    from kafka import KafkaProducer  # noqa: PLC0415

    return KafkaProducer(
        bootstrap_servers=bootstrap_servers(),
        enable_idempotence=True,
        acks="all",
        linger_ms=LINGER_MS,
        compression_type="lz4",
        batch_size=262_144,
    )


def _kafka_python_throughput(topic: str, count: int) -> None:
    producer = _kafka_python()
    failed: list[str] = []
    for key, value in records(count):
        delivery = producer.send(topic, value, key, headers=HEADERS)
        delivery.add_errback(lambda error: failed.append(str(error)))
    producer.flush()
    producer.close()
    assert not failed, failed[:3]


def _kafka_python_latency(topic: str, count: int) -> list[float]:
    producer = _kafka_python()
    latencies: list[float] = []
    failed: list[str] = []
    start_s = time.perf_counter()

    def delivered(due_s: float) -> Callable[[Any], None]:
        return lambda _metadata: latencies.append(time.perf_counter() - due_s)

    for number, (key, value) in enumerate(records(count)):
        due_s = start_s + number / LATENCY_RATE_HZ
        while time.perf_counter() < due_s:
            time.sleep(_TICK_S)
        delivery = producer.send(topic, value, key, headers=HEADERS)
        delivery.add_callback(delivered(due_s))
        delivery.add_errback(lambda error: failed.append(str(error)))
    producer.flush()
    producer.close()
    assert not failed, failed[:3]
    return latencies


@contextlib.asynccontextmanager
async def _sequitur() -> AsyncIterator[Any]:
    """Our producer with its journal, synced before anything is sent; its close is timed, too."""
    from sequitur.producer import IdempotentProducer, KafkaSettings, ProducerSettings  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="sequitur-bench-") as folder:
        settings = ProducerSettings(name="bench", journal=Path(folder) / "journal")
        kafka = KafkaSettings(bootstrap_servers=bootstrap_servers())
        async with IdempotentProducer(kafka, settings) as producer:
            yield producer


async def _send_many_throughput(topic: str, count: int) -> None:
    from sequitur.producer import Record  # noqa: PLC0415

    async with _sequitur() as producer:
        ticket = await producer.send_many(
            topic, (Record(value, key, HEADERS) for key, value in records(count))
        )
        result = await ticket
    assert result.persisted == count, result


async def _send_throughput(topic: str, count: int) -> None:
    from sequitur.producer import Persisted  # noqa: PLC0415

    async with _sequitur() as producer:
        sent: deque[Any] = deque()
        for key, value in records(count):
            sent.append(await producer.send(topic, value, key=key, headers=HEADERS))
            if len(sent) > _CHUNK:
                assert isinstance(await sent.popleft(), Persisted)
        for delivery in sent:
            assert isinstance(await delivery, Persisted)


async def _send_nowait_throughput(topic: str, count: int) -> None:
    from sequitur.errors import BufferFullError  # noqa: PLC0415
    from sequitur.producer import Persisted  # noqa: PLC0415

    failed: list[object] = []

    def delivered(outcome: object) -> None:
        if not isinstance(outcome, Persisted):
            failed.append(outcome)

    async with _sequitur() as producer:
        await producer.partitions_for(topic)
        for number, (key, value) in enumerate(records(count)):
            try:
                producer.send_nowait(topic, value, key, headers=HEADERS, on_delivery=delivered)
            except BufferFullError:
                await producer.send(topic, value, key, headers=HEADERS)
            if number & 1023 == 0:
                await asyncio.sleep(0)
        await producer.flush()
    assert not failed, failed[:3]


async def _send_nowait_latency(topic: str, count: int) -> list[float]:
    from sequitur.producer import Persisted  # noqa: PLC0415

    latencies: list[float] = []

    def delivered(due_s: float) -> Callable[[object], None]:
        def on_delivery(outcome: object) -> None:
            assert isinstance(outcome, Persisted), outcome
            latencies.append(time.perf_counter() - due_s)

        return on_delivery

    events = list(records(count))
    async with _sequitur() as producer:
        await producer.partitions_for(topic)
        start_s = time.perf_counter()
        for number, (key, value) in enumerate(events):
            due_s = start_s + number / LATENCY_RATE_HZ
            while time.perf_counter() < due_s:  # noqa: ASYNC110 - a clock
                await asyncio.sleep(_TICK_S)
            producer.send_nowait(topic, value, key, headers=HEADERS, on_delivery=delivered(due_s))
        await producer.flush()
    assert len(latencies) == count
    return latencies


async def _send_many_latency(topic: str, count: int) -> list[float]:
    from sequitur.producer import Record  # noqa: PLC0415

    async with _sequitur() as producer:

        async def send(key: bytes, value: bytes) -> None:
            result = await (await producer.send_many(topic, [Record(value, key, HEADERS)]))
            assert result.persisted == 1, result

        return await _at_rate(count, send)


async def _send_latency(topic: str, count: int) -> list[float]:
    from sequitur.producer import Persisted  # noqa: PLC0415

    async with _sequitur() as producer:

        async def send(key: bytes, value: bytes) -> None:
            outcome = await (await producer.send(topic, value, key=key, headers=HEADERS))
            assert isinstance(outcome, Persisted), outcome

        return await _at_rate(count, send)


def _run(throughput: Callable[[str, int], Any]) -> Callable[[str, int], None]:
    def run(topic: str, count: int) -> None:
        asyncio.run(throughput(topic, count))

    return run


def _run_latency(latency: Callable[[str, int], Any]) -> Callable[[str, int], list[float]]:
    def run(topic: str, count: int) -> list[float]:
        latencies: list[float] = asyncio.run(latency(topic, count))
        return latencies

    return run


CONTENDERS: Final = {
    "sequitur.send_many": Contender(
        ("sequitur.producer._client", "sequitur.producer.batching.columns"),
        _run(_send_many_throughput),
        _run_latency(_send_many_latency),
    ),
    "sequitur.send": Contender(
        ("sequitur.producer._client",), _run(_send_throughput), _run_latency(_send_latency)
    ),
    "sequitur.send_nowait": Contender(
        ("sequitur.producer._client",),
        _run(_send_nowait_throughput),
        _run_latency(_send_nowait_latency),
    ),
    "confluent.Producer": Contender(
        ("confluent_kafka",), _confluent_throughput, _confluent_latency
    ),
    "confluent.AIOProducer": Contender(
        ("confluent_kafka.aio",), _run(_aio_throughput), _run_latency(_aio_latency)
    ),
    "aiokafka.send": Contender(
        ("aiokafka",), _run(_aiokafka_throughput), _run_latency(_aiokafka_latency)
    ),
    "kafka-python.send": Contender(("kafka",), _kafka_python_throughput, _kafka_python_latency),
}


def main() -> None:
    """Run one contender once and print what it took as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=list(CONTENDERS))
    parser.add_argument("measure", choices=["throughput", "latency"])
    parser.add_argument("topic")
    parser.add_argument("records", type=int)
    given = parser.parse_args()
    contender = CONTENDERS[given.name]
    for module in contender.modules:
        importlib.import_module(module)
    started_s = time.perf_counter()
    if given.measure == "throughput":
        contender.throughput(given.topic, given.records)
        latencies: list[float] = []
    else:
        latencies = contender.latency(given.topic, given.records)
    result = {
        "seconds": time.perf_counter() - started_s,
        "latencies_s": latencies,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
