"""A producer in a process of its own, which sends numbered events and tells what becomes of them.

    python -m tests.support.sending_process BOOTSTRAP TOPIC JOURNAL LIFE COUNT

It sends `LIFE:0` to `LIFE:COUNT-1`, prints `journaled N` when all up to N outlive it, `N PARTITION
OFFSET` for each event that is in the log, and at its end `done`, or `failed REASON`. It waits for
each batch to be journaled, and for the outcomes only at the end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sequitur.errors import ProducerError
from sequitur.producer import IdempotentProducer, Persisted, ProducerSettings, Record
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_BATCH = 40
_TIMEOUT_S = PATIENCE_S


_changed = threading.Condition()
"""Somebody has said something."""


class SendingProcess:
    """One such process, as a test sees it.

    Attributes:
        life: What its events begin with.
        journaled: How many of its events were on disk when it said so last.
        places: Partition and offset of each that is in the log.
        end: What it said last, once it has ended by itself.
    """

    def __init__(
        self, bootstrap_servers: str, topic: str, journal: Path, life: str, count: int
    ) -> None:
        self.life = life
        self.journaled = 0
        self.places: dict[str, tuple[int, int | None]] = {}
        self.end = ""
        arguments = [bootstrap_servers, topic, str(journal), life, str(count)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.sending_process", *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def values(self) -> list[str]:
        return [f"{self.life}:{number}" for number in range(self.journaled)]

    def wait_for(self, condition: Callable[[SendingProcess], bool]) -> None:
        wait_for_any([self], condition)

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self.close()

    def close(self) -> None:
        self._process.wait(_TIMEOUT_S)
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with _changed:
                self._take(line.split())
                _changed.notify_all()

    def _take(self, words: Sequence[str]) -> None:
        match words:
            case ["journaled", number]:
                self.journaled = int(number)
            case [number, partition, offset]:
                known = None if offset == "None" else int(offset)
                self.places[f"{self.life}:{number}"] = (int(partition), known)
            case _:
                self.end = " ".join(words)


def wait_for_any(
    processes: Sequence[SendingProcess], condition: Callable[[SendingProcess], bool]
) -> None:
    with _changed:
        met = _changed.wait_for(lambda: any(map(condition, processes)), _TIMEOUT_S)
    said = [(it.life, it.journaled, len(it.places), it.end) for it in processes]
    assert met, f"life, journaled, in the log, end: {said}"


def _say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def _send(bootstrap_servers: str, topic: str, journal: str, life: str, count: str) -> None:
    settings = ProducerSettings(
        name="copied",
        journal=Path(journal),
        retry_backoff=timedelta(milliseconds=20),
        retry_backoff_max=timedelta(milliseconds=200),
        close_timeout=timedelta(seconds=10),
    )

    def tell(number: int, delivery: asyncio.Future[object]) -> None:
        outcome = delivery.result()
        if isinstance(outcome, Persisted):
            _say(number, outcome.partition, outcome.offset)

    async with IdempotentProducer(bootstrap_servers, settings) as producer:
        for start in range(0, int(count), _BATCH):
            numbers = range(start, min(start + _BATCH, int(count)))
            records = [Record(b"%b:%d" % (life.encode(), n), key=b"%d" % (n % 7)) for n in numbers]
            deliveries = await producer.accept_each(topic, records)
            for number, delivery in zip(numbers, deliveries, strict=True):
                delivery.add_done_callback(partial(tell, number))
            await (await producer.accept(topic, [])).journaled
            _say("journaled", numbers[-1] + 1)
        flushed = asyncio.ensure_future(producer.flush())
        failed = asyncio.ensure_future(producer.failure())
        await asyncio.wait((flushed, failed), return_when=asyncio.FIRST_COMPLETED)
        flushed.cancel()
        failed.cancel()
        if failed.done() and not failed.cancelled():
            raise failed.result()


def main() -> None:
    """Send, and say how it ended."""
    try:
        asyncio.run(_send(*sys.argv[1:]))
    except ProducerError as error:
        _say("failed", error)
    else:
        _say("done")


if __name__ == "__main__":
    main()
