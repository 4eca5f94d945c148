"""What a daemon tells of itself on its port for health."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.daemon_process import DaemonProcess

_POLL_S = 0.02


class DaemonHealth:
    """A daemon's health.

    Args:
        daemon: Listens on the port that it has logged.
    """

    def __init__(self, daemon: DaemonProcess) -> None:
        self.daemon = daemon
        self._port = daemon.wait_for("health")["port"]

    def _get(self, path: str) -> str:
        assert self.daemon.process.poll() is None, self.daemon.log
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self._port}{path}", timeout=PATIENCE_S
            ) as found:
                return str(found.read().decode())
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.read().decode()

    def unready(self) -> dict[str, str]:
        found: dict[str, str] = json.loads(self._get("/readyz"))["unready"]
        return found

    def metric(self, name: str) -> float | None:
        lines = self._get("/metrics").splitlines()
        values = [line for line in lines if line.startswith(f"sequitur_producer_{name} ")]
        return float(values[0].rpartition(" ")[2]) if values else None

    def until(self, holds: Callable[[], object]) -> None:
        """Wait for something; fail if the daemon ends before."""
        while not holds():
            time.sleep(_POLL_S)
