"""Whether a broker can be reached and accepts the login, before a program begins its work.

Clients would retry for long, and not say why.
"""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from sequitur.errors import BrokerError, BrokerUnreachableError, SettingsError
from sequitur.kafka.wire import Wire

if TYPE_CHECKING:
    from sequitur.kafka.settings import KafkaSettings

_CONNECT_TIMEOUT_S: Final = 2.0
_ANSWER_TIMEOUT: Final = timedelta(seconds=10)
"""A broker that accepts connections may be busy, so it gets more time."""
_CLIENT_ID: Final = "sequitur-check"


def require_broker(kafka: KafkaSettings, *, timeout_s: float = _CONNECT_TIMEOUT_S) -> None:
    """Return once a broker accepts the login and answers.

    All addresses are tried side by side, and the first that accepts a connection is enough.
    """
    _require_listener(kafka, timeout_s)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(_ask(kafka))
    else:  # as in a notebook, whose loop runs in the thread of its cells
        with ThreadPoolExecutor(1) as own:
            own.submit(asyncio.run, _ask(kafka)).result()


async def why_no_broker(kafka: KafkaSettings, *, limit_s: float) -> str:
    """Return why no broker can be used, as far as this shows within `limit_s`."""
    try:
        await asyncio.to_thread(_require_listener, kafka, limit_s / 2)
        async with asyncio.timeout(limit_s / 2):
            await _ask(kafka)
    except TimeoutError:
        return "somebody accepts connections, and does not answer as a broker"
    except (BrokerError, SettingsError) as error:
        return str(error)
    return "a broker answers, and has not given a producer id yet"


async def _ask(kafka: KafkaSettings) -> None:
    wire = Wire(kafka, client_id=_CLIENT_ID, request_timeout=_ANSWER_TIMEOUT)
    try:
        await wire.start()
    finally:
        await wire.close()


def _require_listener(kafka: KafkaSettings, timeout_s: float) -> None:
    addresses = kafka.bootstrap_servers.split(",")
    answers: queue.SimpleQueue[tuple[str, str | None]] = queue.SimpleQueue()
    for address in addresses:
        # Nobody waits for these threads: a silent name server may hold one for long.
        threading.Thread(
            target=lambda one: answers.put((one, _refusal(one, timeout_s))),
            args=(address,),
            daemon=True,
        ).start()
    refusals = dict.fromkeys(addresses, f"no answer in {timeout_s:g} s")
    deadline_s = time.monotonic() + timeout_s
    for _ in addresses:
        try:
            address, refusal = answers.get(timeout=max(0.0, deadline_s - time.monotonic()))
        except queue.Empty:
            break
        if refusal is None:
            return
        refusals[address] = refusal
    told = "; ".join(f"{address}: {refusal}" for address, refusal in refusals.items())
    raise BrokerUnreachableError(f"no broker can be reached: {told}")


def _refusal(address: str, timeout_s: float) -> str | None:
    """Return why an address accepts no connection, None if it accepts one."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
    except TimeoutError:
        return f"no answer in {timeout_s:g} s"
    except (OSError, OverflowError, UnicodeError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None
