"""Fixtures of the tests that run programs."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING, Protocol

import pytest

from tests.support.daemon_process import DaemonProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.support.brokers import Broker


class StartDaemon(Protocol):
    """Starts the daemon on the test's broker."""

    def __call__(
        self,
        *arguments: str,
        stdin: int = subprocess.DEVNULL,
        bootstrap_servers: str = "",
        environ: Mapping[str, str] | None = None,
    ) -> DaemonProcess:
        """Start it with these flags; it is killed at the test's end if it still lives then."""


@pytest.fixture
def start_daemon(broker: Broker, tmp_path: Path) -> Iterator[StartDaemon]:
    """Daemons whose journals are in the test's own folder."""
    with contextlib.ExitStack() as started:

        def start(
            *arguments: str,
            stdin: int = subprocess.DEVNULL,
            bootstrap_servers: str = "",
            environ: Mapping[str, str] | None = None,
        ) -> DaemonProcess:
            servers = bootstrap_servers or broker.bootstrap_servers
            folder = tmp_path / "state"
            daemon = DaemonProcess(servers, folder, *arguments, stdin=stdin, environ=environ)
            return started.enter_context(daemon)

        yield start
