"""A process that opens a `Subscription` and counts what it holds, while all it does is done often.

    python -m tests.support.open_and_count SERVERS PREFIX NAME TOPIC

Prints JSON: the most clients of librdkafka, threads of Python and threads in all that were seen
beside those of before.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from sequitur import Subscription
from sequitur.consumer.subscription import consumption, skipping
from sequitur.producer import KafkaSettings
from tests.support.waiting import PATIENCE_S

_LOOKS_S = 0.1
_SETTLES_S = PATIENCE_S


def _counts() -> tuple[int, int, int]:
    kinds = (Consumer, Producer, AdminClient)
    handles = sum(issubclass(type(one), kinds) for one in gc.get_objects())
    return handles, threading.active_count(), len(list(Path("/proc/self/task").iterdir()))


def main(servers: str, prefix: str, name: str, topic: str) -> None:
    """Open, wait for a message, and look for a while."""
    skipping.SKIPS_EACH_S = consumption.NEW_PARTITIONS_EACH_S = _LOOKS_S  # type: ignore[misc]
    kafka = KafkaSettings(bootstrap_servers=servers, system_prefix=prefix)
    before = _counts()
    looks = 0
    skip_due = skipping.skip_due

    def noted(*given: object) -> list[object]:
        nonlocal looks
        found = skip_due(*given)  # type: ignore[arg-type]
        looks += 1
        return list(found)

    skipping.skip_due = noted  # type: ignore[assignment]
    with Subscription(kafka, name, topic, position="earliest") as subscription:
        message = subscription.receive(_SETTLES_S)
        assert message is not None
        subscription.acknowledge(message)
        subscription.flush()
        until_s = time.monotonic() + _SETTLES_S
        while looks < 1 and time.monotonic() < until_s:
            time.sleep(0.01)
        seen, most = looks, (0, 0, 0)
        while looks < seen + 10 and time.monotonic() < until_s:
            held = (now - then for now, then in zip(_counts(), before, strict=True))
            most = tuple(map(max, most, held))  # type: ignore[assignment]
            time.sleep(0.01)
    found = {"handles": most[0], "own": most[1], "threads": most[2], "looks": looks}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
