"""The search for the connected leader of each partition."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from sequitur.base.log import Logger
from sequitur.base.process import report_failure
from sequitur.base.retry import Retry
from sequitur.errors import BrokerError, FatalError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from random import Random

    from sequitur.base.retry import Attempts, Backoff
    from sequitur.kafka.wire import Wire

_log = Logger(__name__)


class LeaderFinder:
    """Find the connected leader of a partition.

    At most one task refreshes the metadata, and at most one task per broker connects to it. Each
    waits before it ends, by the backoff of `Retry`. The next call of `leader` begins it again.
    """

    def __init__(
        self,
        wire: Wire,
        backoff: Backoff,
        random: Random,
        *,
        on_change: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._wire = wire
        self._retry = Retry(backoff=backoff, random=random.random)
        self._on_change = on_change
        self._on_failure = on_failure
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshes = self._retry.attempts()
        self._connecting: dict[int, asyncio.Task[None]] = {}
        self._connects: dict[int, Attempts] = {}
        self._connect_reasons: dict[int, str] = {}
        # The last fatal error of each broker since it was last connected, such as a rejected login.
        self._fatal_errors: dict[int, str] = {}

    def leader(self, topic: str, partition: int) -> int | str:
        """Return the connected leader of a partition, or the reason why there is none yet."""
        node = self._wire.leader(topic, partition)
        if node is None:
            self.refresh()
            return f"{topic}-{partition} has no leader"
        if self._wire.is_connected(node):
            return node
        if node not in self._connecting:
            self._connecting[node] = self._begin(self._connect(node))
        reason = self._connect_reasons.get(node)
        return f"broker {node} cannot be reached{f': {reason}' if reason else ''}"

    def refresh(self) -> None:
        if self._refreshing is None:
            self._refreshing = self._begin(self._refresh())

    def _begin(self, looking: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(looking)
        report_failure(task, self._on_failure)
        return task

    def stop(self) -> None:
        for task in (self._refreshing, *self._connecting.values()):
            if task is not None:
                task.cancel()

    async def _refresh(self) -> None:
        try:
            if await self._wire.refresh():
                self._refreshes.succeed()
                # A leader election takes a moment; asking in a tight loop does not speed it up.
                await self._retry.attempts().pause()
            else:
                await self._refreshes.pause()
        finally:
            self._refreshing = None
            self._on_change()

    async def _connect(self, node: int) -> None:
        try:
            reason = await self._try_to_connect(node)
            if reason is None:
                self._connects.pop(node, None)
                self._connect_reasons.pop(node, None)
                self._fatal_errors.pop(node, None)
                _log.debug("connected", broker=node)
            else:
                if reason != self._connect_reasons.get(node):
                    _log.warning("broker cannot be reached", broker=node, reason=reason)
                self._connect_reasons[node] = reason
                self.refresh()
                # An event that expires during the backoff reports this reason, too.
                self._on_change()
                await self._connects.setdefault(node, self._retry.attempts()).pause()
        finally:
            del self._connecting[node]
            self._on_change()

    async def _try_to_connect(self, node: int) -> str | None:
        """Connect, and return None, or the reason why there is no connection.

        A fatal error stays part of the reason until there is a connection: a user has to act on
        it, and a broker that is then away for a moment has not taken it back.
        """
        try:
            if await self._wire.connect(node):
                return None
            reason = "the cluster no longer names it"
        except FatalError as error:
            self._fatal_errors[node] = str(error)
            return str(error)
        except BrokerError as error:
            reason = str(error)
        fatal = self._fatal_errors.get(node)
        return f"{reason}; before that: {fatal}" if fatal else reason
