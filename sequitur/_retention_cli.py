"""`sequitur retention`: delete what all subscriptions have acked and no retention keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.table import Table

from sequitur._console import table_console
from sequitur._kafka_commands import AsJson, KafkaJob, echo_json, surveyor_of
from sequitur.base.flags import with_flags

if TYPE_CHECKING:
    from sequitur.consumer.subscription.retention_run import RetentionRun

REFUSED_EXIT_CODE: Final = 1
"""Something that is acked was not deleted."""
_NARROWEST: Final = 120
"""The table needs this many columns; a pipe has none, and rich would take 80."""

retention_app = typer.Typer(
    name="retention",
    help="Delete messages that all subscriptions have acked.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@retention_app.callback()
def _is_a_group() -> None:
    """With a callback a single command keeps its name."""


@retention_app.command()
@with_flags(KafkaJob)
def run(
    settings: KafkaJob,
    *,
    topic: Annotated[
        list[str] | None, typer.Argument(help="Topics; without any, all with subscriptions")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be deleted, and delete nothing")
    ] = False,
    despite_topic_retention: Annotated[
        bool,
        typer.Option(
            "--despite-topic-retention",
            help="Also of topics whose own retention deletes messages that are not acked",
        ),
    ] = False,
    despite_other_groups: Annotated[
        bool,
        typer.Option(
            "--despite-other-groups",
            help="Also what consumer groups have not committed that are no subscriptions",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete of each partition what lies before the smallest mark-delete position.

    Less what the retention of the topic keeps; see `sequitur topic set-retention`. Status 1 when
    something was refused.
    """
    from sequitur.consumer.subscription.retention_run import run_retention  # noqa: PLC0415

    surveyor = surveyor_of(settings)
    for one in topic or ():
        surveyor.topics.require(one)
    found = run_retention(
        surveyor,
        topic or None,
        dry_run=dry_run,
        despite_topic_retention=despite_topic_retention,
        despite_other_groups=despite_other_groups,
    )
    if as_json:
        echo_json(found.to_document())
    else:
        _print(found)
    if found.refusals:
        raise typer.Exit(REFUSED_EXIT_CODE)


def _print(found: RetentionRun) -> None:
    console = table_console(_NARROWEST)
    verb = "To be deleted" if found.is_dry else "Deleted"
    table = Table(title=f"{verb}: {found.records:,} messages", title_justify="left")
    table.add_column("topic", overflow="fold")
    for column in ("partition", "from", "to before", "messages", "bytes, about"):
        table.add_column(column, justify="right")
    table.add_column("the next is kept by", overflow="fold")
    for one in found.plans:
        held = "-" if one.held_by is None else one.held_by.value
        table.add_row(
            one.topic,
            str(one.partition),
            str(one.before),
            str(one.after),
            f"{one.records:,}",
            f"{one.size_bytes:,}",
            held if one.holder is None else f"{held} {one.holder}",
        )
    console.print(table)
    for refusal in found.refusals:
        console.print(f"refused: {refusal.sentence}", markup=False, soft_wrap=True)
