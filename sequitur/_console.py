"""Where tables are printed to."""

from __future__ import annotations

from rich.console import Console


def table_console(narrowest: int, *, stderr: bool = False) -> Console:
    """Return a console that is wide enough for a table."""
    console = Console(stderr=stderr)
    if console.is_terminal:
        return console
    return Console(stderr=stderr, width=max(console.width, narrowest))
