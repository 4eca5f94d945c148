"""Lives of a producer, a reorder job and a subscription, which any version of Sequitur can live.

    python tests/support/house_life.py first|last BOOTSTRAP FOLDER MARK

MARK ends the names of its topics, and the other names.

It uses public names and commands alone, and nothing else of the tests: so the code of
`before-house` lives the first life and this one the last, or the other way round.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sequitur import IdempotentProducer, Record, Subscription
from sequitur.producer import ProducerSettings

_MARK = sys.argv[-1]
_ORDERS = f"bestellungen-{_MARK}"
_OUTPUT = f"geordnet-{_MARK}"
_PARTITIONS = 2
_TIMES = (5_000, 1_000, 9_000, 3_000, 3_000, 20_000, 15_000, 7_000, 30_000, 25_000)
"""Event times: with a delay of ten seconds some are held, and the last but three is late."""
_ACKED = (0, 1, 3)
_RECEIVE_S = 60.0


def _settings(folder: Path, **more: Any) -> ProducerSettings:
    return ProducerSettings(name=f"laden-{_MARK}", journal=folder / "journal", **more)


def _record(number: int) -> Record:
    time_ms = 1_700_000_000_000 + _TIMES[number % len(_TIMES)] + number // len(_TIMES) * 40_000
    value = json.dumps({"at": time_ms, "number": number, "name": "Überfluß 注文"})
    return Record(value.encode(), key=f"schlüssel-{number % 3}".encode(), partition=number % 2)


async def _send(bootstrap: str, folder: Path, numbers: range) -> None:
    async with IdempotentProducer(bootstrap, _settings(folder)) as producer:
        await producer.send_many(_ORDERS, [_record(number) for number in numbers])


async def _leave(bootstrap: str, folder: Path, numbers: range) -> None:
    """Accept events that nobody has sent when the process is killed."""
    producer = IdempotentProducer(bootstrap, _settings(folder, linger=timedelta(minutes=1)))
    await producer.start()
    await (await producer.accept(_ORDERS, [_record(number) for number in numbers])).journaled
    os.kill(os.getpid(), 9)


def _reorder(bootstrap: str, folder: Path, *more: str) -> None:
    flags = {
        "bootstrap-servers": bootstrap,
        "input-topics": _ORDERS,
        "output-topic": _OUTPUT,
        "event-time": "json:at",
        "checkpoint": str(folder / "checkpoint"),
        "duplicates": "json:number",
    }
    command = [sys.executable, "-m", "sequitur", "reorder", "--available-now", *more]
    command += ["--master", "local[2,4]", "--conf", "spark.ui.enabled=false"]
    command += [word for name, said in flags.items() for word in (f"--{name}", said)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)


def first(bootstrap: str, folder: Path) -> None:
    """Leave a journal with events that wait, a checkpoint with rows held, and cursors."""
    topics = [_ORDERS, _OUTPUT, f"{_OUTPUT}.late", f"{_OUTPUT}.quarantine"]
    client = AdminClient({"bootstrap.servers": bootstrap})
    for one in client.create_topics([NewTopic(one, _PARTITIONS, 1) for one in topics]).values():
        one.result(_RECEIVE_S)
    asyncio.run(_send(bootstrap, folder, range(20)))
    _reorder(bootstrap, folder)
    with Subscription(bootstrap, f"kasse-{_MARK}", _ORDERS, position="earliest") as subscription:
        for _ in range(20):
            message = subscription.receive(_RECEIVE_S)
            if message is not None and json.loads(message.value or b"")["number"] in _ACKED:
                subscription.acknowledge(message)
    asyncio.run(_leave(bootstrap, folder, range(20, 30)))


def last(bootstrap: str, folder: Path) -> None:
    """Go on with all of it to the end, and print the numbers that the subscription receives."""
    asyncio.run(_send(bootstrap, folder, range(30, 31)))
    _reorder(bootstrap, folder, "--drain")
    received: list[int] = []
    with Subscription(bootstrap, f"kasse-{_MARK}", _ORDERS, position="earliest") as subscription:
        while len(received) < 31 - len(_ACKED):
            message = subscription.receive(_RECEIVE_S)
            if message is None:
                break
            received.append(json.loads(message.value or b"")["number"])
            subscription.acknowledge(message)
    sys.stdout.write(json.dumps(sorted(received)))


if __name__ == "__main__":
    {"first": first, "last": last}[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))
