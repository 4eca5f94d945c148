"""Where tables are printed to."""

from __future__ import annotations

from rich.console import Console


def table_console(narrowest: int, *, stderr: bool = False) -> Console:
    """Return a console that is wide enough for a table.

    Args:
        narrowest: The columns that the table needs: a pipe has none, and rich would take 80. A
            terminal stays as it is.
        stderr: Print to standard error.
    """
    console = Console(stderr=stderr)
    if console.is_terminal:
        return console
    return Console(stderr=stderr, width=max(console.width, narrowest))
