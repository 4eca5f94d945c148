"""A port in front of a server, which loses a request or its answer when a test wants it to."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Literal, Self

if TYPE_CHECKING:
    from collections.abc import Callable

_HOST = "127.0.0.1"
_PIECE_BYTES = 1 << 16


class LossyProxy:
    """To be used by `with`; each connection has a thread.

    Attributes:
        port: Where clients connect.
        lost: How many requests or answers were lost.

    Args:
        server_port: The server's, on the loopback address.
    """

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server((_HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.lost = 0
        self._loses: tuple[Literal["request", "answer"], bytes] | None = None
        self._before: tuple[bytes, Callable[[], object]] | None = None
        self._is_down = self._goes_down = False
        self._open: set[socket.socket] = set()
        self._unanswered: set[socket.socket] = set()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for client in list(self._open):
            _shut(client)
        self._thread.join()

    def lose(
        self, what: Literal["request", "answer"], of: bytes, *, and_go_down: bool = False
    ) -> None:
        """Cut the connection at the next request that has these bytes in it.

        Args:
            what: The request is not passed on; or it is, and its answer is not.
            of: What the request has in it.
            and_go_down: No connection is let through after it, until `come_up`.
        """
        self._goes_down = and_go_down
        self._loses = (what, of)

    def before(self, request: bytes, do: Callable[[], object]) -> None:
        """Do something before the next request that has these bytes in it is passed on."""
        self._before = (request, do)

    def come_up(self) -> None:
        """Let connections through again."""
        self._is_down = False

    def _accept(self) -> None:
        threads: list[threading.Thread] = []
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threads.append(threading.Thread(target=self._serve, args=(client,)))
                threads[-1].start()
        for thread in threads:
            thread.join()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            if self._is_down:
                return
            self._open.add(client)
            with socket.create_connection((_HOST, self._server_port)) as server:
                answers = threading.Thread(target=self._pass_answers, args=(server, client))
                answers.start()
                self._pass_requests(client, server)
                _shut(server)
                answers.join()
            self._open.discard(client)

    def _pass_requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while said := client.recv(_PIECE_BYTES):
                if self._before is not None and self._before[0] in said:
                    do, self._before = self._before[1], None
                    do()
                loses = self._loses
                if loses is None or loses[1] not in said:
                    server.sendall(said)
                    continue
                self._loses, self._is_down = None, self._goes_down
                if loses[0] == "answer":
                    # The client learns of it behind the server's answer: what was asked is done.
                    self._unanswered.add(client)
                    server.sendall(said)
                    server.shutdown(socket.SHUT_WR)
                self.lost += 1
                return

    def _pass_answers(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while answer := server.recv(_PIECE_BYTES):
                if client not in self._unanswered:
                    with contextlib.suppress(OSError):
                        client.sendall(answer)
        _shut(client)


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
