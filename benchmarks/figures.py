"""Figures as a table: each a name, a value and a unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def print_figures(title: str, figures: Sequence[Mapping[str, Any]]) -> None:
    """Print every figure."""
    table = Table(title=title, title_justify="left")
    for column in ("", "value", "unit"):
        table.add_column(column, justify="right" if column == "value" else "left")
    for figure in figures:
        table.add_row(figure["name"], f"{figure['value']:,.2f}", figure["unit"])
    Console().print(table)
