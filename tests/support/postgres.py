"""A PostgreSQL server on this machine, with a data directory of its own; it can be killed."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

import psutil

from sequitur.base.ports import HOST, choose_free
from tests.support.waiting import PATIENCE_S

_UP_TIMEOUT_S = 2 * PATIENCE_S
_POLL_S = 0.05
_NO_ROOT = ("postgres", "nobody")
_DEBIAN = Path("/usr/lib/postgresql")
_INITDB = ("-E", "UTF8", "--locale=C.UTF-8", "--auth=trust", "--no-sync")
_LOGINS = f"""\
host replication all {HOST}/32 trust
host all secured {HOST}/32 scram-sha-256
host all all {HOST}/32 trust
"""
PASSWORD_USER = "secured"
"""The one user who is asked for a password; the others are not."""


class PostgresServer:
    """To be used by `with`; starts at once.

    Attributes:
        port: Where it listens, on the loopback address; the same after each start.
    """

    def __init__(self, **options: str) -> None:
        self.port = choose_free()
        self._options = options
        self._primary_port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def standby(self) -> PostgresServer:
        """Return a standby of this server, which has to run when it starts."""
        made = PostgresServer(**self._options)
        made._primary_port = self.port
        return made

    def __enter__(self) -> Self:
        # Not below pytest's folder: that is for one user alone, who may not run the server.
        self._folder = Path(tempfile.mkdtemp(prefix="sequitur-postgres-"))
        self._data = self._folder / "data"
        self._user = None
        if os.geteuid() == 0:
            self._user = next(name for name in _NO_ROOT if _is_user(name))
            shutil.chown(self._folder, self._user)
        try:
            self._make()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # At once, but its children are gone then, and write no more.
        self._end(signal.SIGQUIT)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def process_id(self) -> int:
        assert self._process is not None
        return self._process.pid

    def url(self, database: str = "postgres", user: str = "postgres", port: int = 0) -> str:
        """Return a database's address, behind another port if one is given."""
        return f"postgresql+psycopg://{user}@{HOST}:{port or self.port}/{database}"

    def start(self) -> None:
        deadline_s = time.monotonic() + _UP_TIMEOUT_S
        options = {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "40",
            **self._options,
        }
        given = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        while not self._answers():
            assert time.monotonic() < deadline_s, self.said()
            # Children of one that was killed may live for a moment, and hold its memory.
            if self._process is None or self._process.poll() is not None:
                with (self._folder / "said").open("ab") as said:
                    self._process = subprocess.Popen(
                        [_program("postgres"), "-D", self._data, *given],
                        stdout=said,
                        stderr=said,
                        cwd=self._folder,
                        user=self._user,
                    )
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """End it in order, without waiting for its clients."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Kill the postmaster; its children notice, and have ended when this returns.

        One that does not notice yet would still serve what it was asked.
        """
        children = []
        if self._process is not None and self._process.poll() is None:
            children = psutil.Process(self._process.pid).children(recursive=True)
        self._end(signal.SIGKILL)
        psutil.wait_procs(children)

    def sql(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run a statement, and return its rows, if it has any."""
        import psycopg  # noqa: PLC0415 - most tests need none

        url = self.url(database).replace("+psycopg", "")
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def said(self) -> str:
        return (self._folder / "said").read_text(errors="replace")

    def _make(self) -> None:
        made = [_program("initdb"), "-D", str(self._data), "-U", "postgres", *_INITDB]
        if self._primary_port is not None:
            place = ["-h", HOST, "-p", str(self._primary_port), "-U", "postgres"]
            made = [_program("pg_basebackup"), "-D", str(self._data), *place, "-R", "-c", "fast"]
        subprocess.run(
            made,
            check=True,
            capture_output=True,
            cwd=self._folder,
            user=self._user,
        )
        (self._data / "pg_hba.conf").write_text(_LOGINS)

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            return False
        ready = [_program("pg_isready"), "-q", "-h", HOST, "-p", str(self.port)]
        return subprocess.run(ready, check=False).returncode == 0

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(number)
            self._process.wait()
            self._process = None


def _is_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _program(name: str) -> str:
    """Return where a program of PostgreSQL is: Debian puts its newest where PATH has none."""
    places = [str(place) for place in sorted(_DEBIAN.glob("*/bin"), key=_version)]
    found = shutil.which(name) or shutil.which(name, path=":".join(reversed(places)))
    assert found, f"{name} is not installed: apt-get install postgresql"
    return found


def _version(folder: Path) -> int:
    return int(folder.parent.name)
