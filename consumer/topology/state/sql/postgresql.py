"""Connections to PostgreSQL that do not wait for ever.

A server whose machine has stopped, or whose disk hangs, keeps its connections and says nothing.
This module needs psycopg, so states in SQLite must not import it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import psycopg

if TYPE_CHECKING:
    from collections.abc import Generator


ANSWER_TIMEOUT_S: Final = 60
"""How long a server may say nothing: longer than it lets a statement wait for a lock."""


class AnsweredConnection(psycopg.Connection[Any]):
    """Closes with an error when its server has said nothing for `ANSWER_TIMEOUT_S`."""

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        return super().wait(self._within_limit(gen), *args, **options)

    def _within_limit(self, gen: Any) -> Generator[Any, Any, Any]:
        """Pass on what the driver waits for and its result: nothing each 0.1 s."""
        heard_s = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                now_s = time.monotonic()
                if ready:
                    heard_s = now_s
                elif now_s - heard_s > ANSWER_TIMEOUT_S:
                    self.close()
                    raise psycopg.OperationalError(
                        f"the server has not answered for {now_s - heard_s:.0f} s"
                    )
                wanted = gen.send(ready)
        except StopIteration as done:
            return done.value
