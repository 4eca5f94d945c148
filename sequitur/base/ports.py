"""Free ports on the loopback address, for servers that are started here."""

from __future__ import annotations

import random
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

HOST: Final = "127.0.0.1"
_EPHEMERAL_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_EPHEMERAL_START: Final = 32_768
_LOWEST: Final = 10_000
_ATTEMPTS: Final = 200


def choose_free(avoid: Collection[int] = ()) -> int:
    """Return a free port below those that the kernel gives to outgoing connections.

    The kernel might choose the other ports as local ports: while the broker is down, a client that
    retries could get the broker's port as its local one, connect to itself, and block the port.
    """
    try:
        ephemeral_start = int(_EPHEMERAL_RANGE.read_text("ascii").split()[0])
    except (OSError, ValueError, IndexError):
        ephemeral_start = _USUAL_EPHEMERAL_START
    if ephemeral_start <= _LOWEST:  # all ports are ephemeral: take the risk
        ephemeral_start = _USUAL_EPHEMERAL_START
    for _ in range(_ATTEMPTS):
        port = random.randrange(_LOWEST, ephemeral_start)
        if port not in avoid and is_free(port):
            return port
    raise OSError(f"no free port found on {HOST} between {_LOWEST} and {ephemeral_start}")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As in Java, connections of a dead server, still in TIME_WAIT, do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def answers(port: int, timeout_s: float = 1.0) -> bool:
    try:
        socket.create_connection((HOST, port), timeout_s).close()
    except OSError:
        return False
    return True
