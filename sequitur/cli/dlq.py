"""`sequitur dlq`: list, show and replay events that the process job gave up."""

from __future__ import annotations

import heapq
import json
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Group
from rich.table import Table

from sequitur.base.flags import with_flags
from sequitur.cli.console import shown, table_console
from sequitur.cli.topic_reader import read_records, read_topic
from sequitur.errors import CheckpointError
from sequitur.pipelines.ordering.progress import instant
from sequitur.pipelines.run_options import ProcessJob
from sequitur.pipelines.spark_settings import spark_home

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.cli.dead_letters import DeadLetter
    from sequitur.pipelines.store.storage import Storage


NOTHING_SELECTED_EXIT_CODE: Final = 1
_NARROWEST: Final = 160
"""The list needs so many columns. A pipe has none, and rich would take 80."""
_SHOWN: Final = 100
_NAMED: Final = 10
"""One error names so many letters that cannot be read."""

dlq_app = typer.Typer(
    name="dlq",
    help="Dead letters of the process job: list them, show one, replay them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Reason = Annotated[str | None, typer.Option(help="Only events that failed for this reason")]
Key = Annotated[str | None, typer.Option(help="Only events with this key")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, not tables")]


@dlq_app.command("list")
@with_flags(ProcessJob)
def list_letters(
    settings: ProcessJob,
    reason: Reason = None,
    key: Key = None,
    as_json: AsJson = False,
    limit: Annotated[int, typer.Option(help="Show at most this many, the newest", min=1)] = _SHOWN,
) -> None:
    """List dead letters, oldest first, and how many there are of each reason."""
    from sequitur.cli.dead_letters import Selection  # noqa: PLC0415

    topic = _topic(settings)
    selection = Selection(reason, None if key is None else key.encode())
    totals: Counter[str] = Counter()

    def counted() -> Any:
        for letter in selection.of(read_topic(settings.kafka, topic)):
            totals[letter.reason] += 1
            yield letter.listed()

    letters = heapq.nlargest(limit, counted(), key=_age)[::-1]
    found = {
        "topic": topic,
        "dead_letters": letters,
        "totals": dict(sorted(totals.items())),
        "foreign": selection.foreign,
    }
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        table_console(_NARROWEST).print(_listed(found))


@dlq_app.command()
@with_flags(ProcessJob)
def show(
    settings: ProcessJob,
    record: Annotated[str, typer.Argument(metavar="P:O", help="Its partition and offset")],
    as_json: AsJson = False,
) -> None:
    """Show one dead letter whole, with its traceback and the event's own headers."""
    from sequitur.cli.dead_letters import DeadLetter  # noqa: PLC0415

    (found,) = read_records(settings.kafka, _topic(settings), [_place(record)])
    letter = DeadLetter.of(found)
    if letter.file is not None:
        from sequitur.pipelines.topology.replays import checkpoint_of  # noqa: PLC0415

        letter = letter.whole(checkpoint_of(settings.reorder).location(""))
    if as_json:
        typer.echo(json.dumps(letter.as_json(), indent=2))
    else:
        table_console(_NARROWEST).print(_whole(letter.as_json()))


@dlq_app.command()
@with_flags(ProcessJob)
def replay(
    settings: ProcessJob,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters")] = False,
    reason: Reason = None,
    key: Key = None,
    record: Annotated[
        list[str] | None,
        typer.Option(
            metavar="P:O", help="The letter at this partition and offset. May be repeated"
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Include letters that were replayed before")
    ] = False,
) -> None:
    """Replay events in the job, as first attempts and in the order of their event time.

    They go straight to the topology: in the input topic they would be late.
    The request is a file in the job's checkpoint, on a path, in an object store or in HDFS. The
    job reads it with its next step, or when it starts, and reads no request twice.

    Replayed events stay in the dead-letter topic. The command skips letters that were replayed
    before, unless --again is given. An event that was dead-lettered several times is replayed once
    per request. --reason and --key may be combined. Status 1: nothing is selected, or all of it
    was replayed before.

    Status 3: the file of a letter in the checkpoint is missing or damaged. The command names the
    letter and replays the others. With --record it replays none.
    """
    spark_home()
    from sequitur.cli.dead_letters import DeadLetter, Selection  # noqa: PLC0415
    from sequitur.kafka.admin import KafkaTopics  # noqa: PLC0415
    from sequitur.pipelines.topology.replays import checkpoint_of  # noqa: PLC0415

    filtered = reason is not None or key is not None
    if [everything, filtered, bool(record)].count(True) != 1:
        raise typer.BadParameter("give either --all, or --reason and --key, or --record")
    checkpoint = checkpoint_of(settings.reorder)
    topic = _topic(settings)
    topic_id = KafkaTopics(settings.kafka).ids([topic]).get(topic, "")
    selection = Selection(reason, None if key is None else key.encode())
    if record:
        places = {_place(text) for text in record}
        letters = [DeadLetter.of(one) for one in read_records(settings.kafka, topic, places)]
    else:
        letters = list(selection.of(read_topic(settings.kafka, topic)))
    if selection.foreign:
        typer.echo(
            f"skipped, since they are not dead letters: {selection.foreign:,} records", err=True
        )
    if not letters:
        typer.echo(f"nothing is selected in {topic}: nothing is requested")
        raise typer.Exit(NOTHING_SELECTED_EXIT_CODE)
    request(letters, checkpoint, topic_id, again=again, all_or_none=bool(record))


def request(
    letters: Sequence[DeadLetter],
    checkpoint: Storage,
    topic_id: str,
    *,
    again: bool,
    all_or_none: bool,
) -> None:
    """Write a request for dead letters into the job's checkpoint, and print each one's result."""
    from sequitur.cli.dead_letters import request_rows  # noqa: PLC0415
    from sequitur.pipelines.topology.replays import (  # noqa: PLC0415
        ReplayedLetters,
        request_letters,
    )

    selected = {_place_of(one): one for one in letters}
    new = ReplayedLetters(checkpoint, topic_id).new(selected)
    whole: dict[tuple[int, int], DeadLetter] = {}
    unread: list[CheckpointError] = []
    for place, letter in selected.items():
        if again or place in new:
            try:
                whole[place] = letter.whole(checkpoint.location(""))
            except CheckpointError as error:
                unread.append(CheckpointError(f"dead letter {place[0]}:{place[1]}: {error}"))
    if unread and all_or_none:
        raise unread[0]
    # Another command may take some of them at the same moment.
    found = request_letters(
        checkpoint,
        topic_id,
        whole,
        lambda taken: request_rows(one for place, one in whole.items() if place in taken),
        again=again,
    )
    if before := len(selected) - len(unread) - found.letters:
        typer.echo(f"passed over, since they were replayed before (--again): {before:,}", err=True)
    if found.path is not None:
        typer.echo(
            f"requested {found.events:,} events of {found.letters:,} dead letters: {found.path}\n"
            "the job replays them with its next step, or when it starts"
        )
    if unread:
        raise CheckpointError(
            f"{len(unread):,} dead letters cannot be read, and do not count as replayed: "
            + "; ".join(str(one) for one in unread[:_NAMED])
        ) from unread[0]
    if found.path is None:
        typer.echo("all that is selected was replayed before: nothing is requested")
        raise typer.Exit(NOTHING_SELECTED_EXIT_CODE)


def _topic(settings: ProcessJob) -> str:
    return settings.process.dead_letters(settings.reorder.output_topic)


def _place_of(letter: DeadLetter) -> tuple[int, int]:
    return letter.partition, letter.offset


def _place(text: str) -> tuple[int, int]:
    partition, _, offset = text.partition(":")
    if not (partition.isdecimal() and offset.isdecimal()):
        raise typer.BadParameter(f"{text!r}: expected PARTITION:OFFSET, such as 0:17")
    return int(partition), int(offset)


def _age(letter: dict[str, Any]) -> tuple[int, int, int]:
    return letter["failed_at_ms"], letter["partition"], letter["offset"]


def _listed(found: dict[str, Any]) -> Group:
    letters, totals = found["dead_letters"], found["totals"]
    count = sum(totals.values())
    listed = f"{count:,}" if count == len(letters) else f"the newest {len(letters):,} of {count:,}"
    table = Table(title=f"Dead letters in {found['topic']}: {listed}", title_justify="left")
    for column in ("partition", "offset"):
        table.add_column(column, justify="right")
    table.add_column("reason", no_wrap=True)
    table.add_column("attempts", justify="right")
    for column in ("path", "key", "event time", "source", "error"):
        table.add_column(column, overflow="fold")
    for letter in letters:
        table.add_row(
            str(letter["partition"]),
            str(letter["offset"]),
            shown(letter["reason"]),
            str(letter["attempts"]),
            shown(" > ".join(letter["path"])),
            shown(letter["key"]),
            instant(letter["event_time_ms"]),
            shown(_source(letter)),
            shown(letter["error"]),
        )
    by_reason = Table(title="By reason", title_justify="left", show_header=False)
    by_reason.add_column()
    by_reason.add_column(justify="right")
    for reason, letters_of_it in totals.items():
        by_reason.add_row(shown(reason), f"{letters_of_it:,}")
    by_reason.add_section()
    by_reason.add_row("all", f"{count:,}")
    if found["foreign"]:
        by_reason.add_row("no dead letters", f"{found['foreign']:,}")
    return Group(table, by_reason)


def _whole(letter: dict[str, Any]) -> Group:
    title = f"Dead letter {letter['partition']}:{letter['offset']}"
    table = Table(title=title, title_justify="left", show_header=False)
    for name in ("reason", "attempts", "topology", "path", "component", "stream"):
        value = letter[name]
        if value is None:
            continue
        table.add_row(name, shown(" > ".join(value) if name == "path" else str(value)))
    table.add_row("failed at", instant(letter["failed_at_ms"]))
    table.add_section()
    table.add_row("event time", instant(letter["event_time_ms"]))
    table.add_row("source", shown(_source(letter)))
    table.add_row("key", shown(letter["key"]))
    for name, value in letter["headers"]:
        table.add_row(shown(f"header {name}"), shown(value))
    table.add_row("value", shown(letter["value"]))
    return Group(table, shown(letter["detail"].rstrip() or "no traceback"))


def _source(letter: dict[str, Any]) -> str:
    return "{topic}/{partition} @ {offset}".format(**letter["source"])
