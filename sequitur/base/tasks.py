"""Tasks in the background: none of them ends unheard."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


def report_failure(task: asyncio.Task[None], on_failure: Callable[[Exception], None]) -> None:
    """Call `on_failure` with the exception that a task ends with; not if it is cancelled."""

    def report(ended: asyncio.Task[None]) -> None:
        if not ended.cancelled() and (error := ended.exception()) is not None:
            assert isinstance(error, Exception)
            on_failure(error)

    task.add_done_callback(report)
