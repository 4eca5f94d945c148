"""Which attempt at a task this process is at; whatever runs tasks says so before each."""

from __future__ import annotations

_number = 0


def begin_attempt(number: int) -> None:
    """Begin an attempt at a task. A process runs one task at a time."""
    global _number  # noqa: PLW0603 - a process is at one attempt at a time
    _number = number


def attempt_number() -> int:
    """Return how many attempts the running task had before this one."""
    return _number
