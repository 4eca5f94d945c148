"""Looking for events in the log: what only the leader has yet is waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import pytest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from sequitur.base.retry import Backoff, Retry
from sequitur.errors import RetriableError
from sequitur.kafka import log_reading
from sequitur.kafka.log_reading import find_events
from sequitur.kafka.records import EVENT_ID_HEADER

_DEBUGGER: Final = -2
_LATEST: Final = -1
_NEVER: Final = 10**9


class Leader:
    """Has one batch, which its followers have after so many looks at what they have."""

    def __init__(self, lag: int) -> None:
        self._lag = lag
        builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 16)
        builder.append(0, 1_000, None, b"value", [(EVENT_ID_HEADER, b"id")])
        self._batch = bytes(builder.build())

    async def ask(self, request: Any) -> Any:
        if isinstance(request, OffsetRequest):
            (_topic, ((_partition, time_ms),)) = request._topics[0]
            of_all = request._replica_id == _DEBUGGER
            if time_ms == _LATEST and not of_all:
                self._lag -= 1
            offset = int(of_all or self._lag < 0)
            if time_ms != _LATEST:
                offset = 0 if self._lag < 0 else -1
            return SimpleNamespace(topics=[("t", [(0, 0, -1, offset)])])
        shown = self._lag < 0
        partition = (0, 0, int(shown), 0, 0, None, self._batch if shown else b"")
        return SimpleNamespace(API_VERSION=4, topics=[("t", [partition])])


@pytest.mark.promise("in-log-searched-events")
async def test_what_is_not_replicated_yet_is_waited_for() -> None:
    """It is in no reader's sight, and would be sent a second time."""
    assert await find_events(Leader(lag=2).ask, "t", 0, {b"id", b"other"}, 500) == {b"id"}


@pytest.mark.promise("in-log-searched-events")
async def test_replicas_that_lag_for_long_leave_it_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can say then: it is asked again later."""
    at_once = Backoff(initial_ms=0, maximum_ms=0)
    monkeypatch.setattr(log_reading, "_REPLICATION", Retry(most=20, backoff=at_once))
    with pytest.raises(RetriableError, match="are not in sync yet"):
        await find_events(Leader(lag=_NEVER).ask, "t", 0, {b"id"}, 500)
