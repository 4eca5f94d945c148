"""How a wait says that the job is asked to stop, and how work that goes on for long is ended."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LOOK_S: Final = 0.2


class StopRequestedError(Exception):
    """Work that waits or was about to begin gives way to a stop; the next start continues it."""


@contextlib.contextmanager
def calling_at_stop(
    is_stopping: Callable[[], bool], grace_s: float, end: Callable[[], object]
) -> Iterator[None]:
    """While the block runs, call a function once, `grace_s` after the job is asked to stop."""
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(_LOOK_S):
            if is_stopping() and not is_over.wait(grace_s):
                end()
                return

    watching = threading.Thread(target=watch, name="stop of tasks", daemon=True)
    watching.start()
    try:
        yield
    finally:
        is_over.set()
        watching.join()
