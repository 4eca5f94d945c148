"""A receiver of a subscription in a process of its own, which acks at random and says what it did.

    python -m tests.support.subscription_process BOOTSTRAP PREFIX NAME TOPIC TYPE SEED [LETTERS]

What fails three times is a dead letter in the topic LETTERS, if one is named.

It prints `received POSITION` before it does anything with a message, `acks POSITION` before it acks
one, `stored POSITION...` once the acks of these are stored, and `ended fenced` when another process
has taken the subscription over. Else it does not end by itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING

from sequitur import Backoff, Position, Subscription, SubscriptionType
from sequitur.errors import SubscriptionFencedError
from sequitur.producer import KafkaSettings
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

_TIMEOUT_S = PATIENCE_S
_OFTEN = timedelta(milliseconds=50)
_MOST_REDELIVERED = 2


class SubscriptionProcess:
    """One such process, as a test sees it.

    Attributes:
        received: Position of each message that it got.
        acked: Position of each that it has acked, or was about to.
        stored: Position of each whose ack is stored.
        out: Position of each that was out when acks were stored last.
        end: Why it ended; empty as long as it has not by itself.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        name: str,
        topic: str,
        type_: SubscriptionType,
        seed: int,
        *letters: str,
        take_over: bool = False,
    ) -> None:
        self.received: list[Position] = []
        self.acked: set[Position] = set()
        self.stored: set[Position] = set()
        self.out: set[Position] = set()
        self.end = ""
        self._said = threading.Condition()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.support.subscription_process"),
                *(
                    kafka.bootstrap_servers,
                    kafka.system_prefix,
                    name,
                    topic,
                    type_.value,
                    str(seed),
                ),
                *("take over" if take_over else "", *letters),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def wait_for(self, condition: Callable[[SubscriptionProcess], bool]) -> None:
        with self._said:
            met = self._said.wait_for(lambda: condition(self), _TIMEOUT_S)
        assert met, (len(self.received), len(self.stored), self.end)

    def kill(self) -> None:
        """End it by SIGKILL, and hear what it has said."""
        self._process.kill()
        self._process.wait(_TIMEOUT_S)
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._said:
                match line.split():
                    case ["received", position]:
                        self.received.append(Position.parse(position))
                    case ["acks", position]:
                        self.acked.add(Position.parse(position))
                    case ["stored", *positions]:
                        self.stored |= set(map(Position.parse, positions))
                        self.out = set(self.received) - self.acked
                    case ["ended", *reason]:
                        self.end = " ".join(reason)
                self._said.notify_all()


def _say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def _receive(
    kafka: KafkaSettings,
    name: str,
    topic: str,
    type_: str,
    seed: str,
    *rest: str,
) -> None:
    """Ack two thirds of what comes, fail some, and leave the rest."""
    random = Random(int(seed))
    over, *letters = rest
    backoff = Backoff(initial_ms=5, maximum_ms=50)
    with Subscription(
        kafka,
        name,
        topic,
        type=SubscriptionType(type_),
        negative_ack_backoff=backoff,
        write_interval=_OFTEN,
        max_redeliver_count=_MOST_REDELIVERED if letters else None,
        dead_letter_topic=letters[0] if letters else None,
        position="earliest",
        take_over=bool(over),
    ) as subscription:
        acked: list[Position] = []
        while True:
            message = subscription.receive(0.05)
            if message is None:
                if acked:
                    subscription.flush()
                    _say("stored", *acked)
                    acked = []
                continue
            _say("received", message.position)
            chance = random.random()
            if chance < 2 / 3:
                _say("acks", message.position)
                subscription.acknowledge(message)
                acked.append(message.position)
            elif chance < 0.9:
                subscription.negative_acknowledge(message)
            if len(acked) > 40:
                subscription.flush()
                _say("stored", *acked)
                acked = []


if __name__ == "__main__":
    try:
        servers, prefix, *rest = sys.argv[1:]
        _receive(KafkaSettings(bootstrap_servers=servers, system_prefix=prefix), *rest)
    except SubscriptionFencedError:
        _say("ended", "fenced")
