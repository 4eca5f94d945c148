"""What the commands of `sequitur subscription` share: options, and how they ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.consumer import SourcePartition


Name = Annotated[str, typer.Argument(help="The subscription", show_default=False)]
OneName = Annotated[
    str | None,
    typer.Argument(help="The subscription; without one, all of them", show_default=False),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")]
OnlyTopic = Annotated[str | None, typer.Option("--topic", help="Only this topic")]
OnlyPartition = Annotated[
    int | None, typer.Option("--partition", help="Only this partition", min=0)
]


def ask(question: str) -> None:
    """Ask, and end the program unless the answer is yes."""
    typer.confirm(question, abort=True, err=True)


def only_of(topic: str | None, partition: int | None) -> Callable[[SourcePartition], bool]:
    """Return what says whether a partition is wanted."""
    return lambda where: topic in {None, where.topic} and partition in {None, where.partition}
