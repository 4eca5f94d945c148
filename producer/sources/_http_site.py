"""How many connections a server has at a time, and what clients do that speak no HTTP.

Each connection takes a file descriptor, and the journal needs some, too. So there is a limit: a
client beyond it is told 503 at once. A connection that has not sent the head of its first request
in time is closed, so that silent connections do not keep others out.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from typing import TYPE_CHECKING, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST: Final = 1_000
_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Length: 0\r\n\r\n"
)


class LimitedSite(web.BaseSite):
    """Listens on an address, as `web.TCPSite`, with limits."""

    def __init__(
        self, runner: web.AppRunner, host: str, port: int, *, limit: int, head_timeout_s: float
    ) -> None:
        super().__init__(runner)
        self._host = host
        self._port = port
        self._limit = limit
        self._head_timeout_s = head_timeout_s
        self._silent: dict[asyncio.BaseTransport, asyncio.TimerHandle] = {}

    @property
    def name(self) -> str:
        return f"http://{self._host}:{self._port}"

    async def start(self) -> None:
        await super().start()
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Gate(self._let_in), self._host, self._port, backlog=self._backlog
        )

    def begun(self, transport: asyncio.BaseTransport | None) -> None:
        """Note that a request's head has come on this connection."""
        if transport is not None and (timer := self._silent.pop(transport, None)) is not None:
            timer.cancel()

    def _let_in(self, transport: asyncio.Transport) -> None:
        server = self._runner.server
        if server is None or len(server.connections) >= self._limit:
            transport.write(_FULL)
            transport.close()
            return
        handler = server()
        transport.set_protocol(handler)
        handler.connection_made(transport)
        self._silent[transport] = asyncio.get_running_loop().call_later(
            self._head_timeout_s, self._end, transport
        )

    def _end(self, transport: asyncio.Transport) -> None:
        del self._silent[transport]
        transport.close()


class _Gate(asyncio.Protocol):
    """Hands a connection on before anything has come on it."""

    def __init__(self, let_in: Callable[[asyncio.Transport], None]) -> None:
        self._let_in = let_in

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """There is one more."""
        assert isinstance(transport, asyncio.Transport)
        self._let_in(transport)


def default_limit() -> int:
    """Half of the files that this process may have open, and at most 1,000."""
    files, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if files == resource.RLIM_INFINITY else min(_MOST, max(1, files // 2))


class _WithoutMalformed(logging.Filter):
    """Passes over what clients did wrong: they were answered 400, and it is no fault of ours."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


SERVER_LOG: Final = logging.getLogger("sequitur.producer.http_server")
"""Where a web server logs its own errors."""
SERVER_LOG.addFilter(_WithoutMalformed())
