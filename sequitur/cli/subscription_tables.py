"""What `sequitur subscription` prints for people: tables of subscriptions, cursors and messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import typer
from rich.table import Table

from sequitur.cli.console import shown, table_console
from sequitur.pipelines.ordering.progress import instant

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

_NARROWEST: Final = 150
"""The tables need so many columns. A pipe has none, and rich would take 80."""
_DONE: Final = {"reset": "reset", "skip": "skipped", "expire": "expired"}


def print_list(found: Sequence[Mapping[str, Any]]) -> None:
    table = _table(
        f"Subscriptions: {len(found):,}",
        ("subscription", "type", "topics"),
        ("owner seen,\ns ago", "epoch", "msgBacklog", "backlogSize", "oldest, s"),
    )
    for one in found:
        table.add_row(
            one["name"],
            one["type"],
            ", ".join(one["topics"]),
            *_numbers(
                one,
                "ownerSeenSecondsAgo",
                "epoch",
                "msgBacklog",
                "backlogSize",
                "oldestBacklogMessageAgeSeconds",
            ),
        )
    _print(table)
    for one in found:
        if "damaged" in one:
            typer.echo(f"damaged: {one['damaged']}")


def print_stats(found: Mapping[str, Mapping[str, Any]]) -> None:
    for topic, document in found.items():
        size = f"{document['backlogSize']:,} bytes"
        about = " (an estimate)" if document["backlogSizeIsEstimate"] else ""
        stored = f", storageSize {document['storageSize']:,}" if "storageSize" in document else ""
        producers = len({one["producerId"] for one in document.get("publishers", ())})
        rates = any("msgRateOut" in one for one in document["subscriptions"].values())
        names = ("msgRateOut", "msgThroughputOut", "msgRateRedeliver") if rates else ()
        columns = ("epoch", "msgBacklog", "backlogSize", "unackedMessages", *names)
        table = _table(
            f"Topic {topic}: backlogSize {size}{about}{stored}, {producers:,} producers",
            ("subscription", "type"),
            ("owner seen,\ns ago", *columns),
        )
        for name, one in document["subscriptions"].items():
            table.add_row(name, one["type"], *_numbers(one, "ownerSeenSecondsAgo", *columns))
        _print(table)


def print_cursors(found: Mapping[str, Mapping[str, Any]]) -> None:
    for topic, document in found.items():
        table = _table(
            f"Cursors on {topic} (positions are partition:offset)",
            ("subscription",),
            (
                "lastConfirmedEntry",
                "markDelete",
                "readPosition",
                "msgBacklog",
                "consumed",
                "since first\nnot acked",
                "ranges",
            ),
            ("individuallyDeletedMessages", "state"),
        )
        for partition in document["partitions"].values():
            for name, cursor in partition["cursors"].items():
                table.add_row(
                    name,
                    partition["lastConfirmedEntry"],
                    cursor.get("markDeletePosition", "-"),
                    cursor.get("readPosition", "-"),
                    *_numbers(
                        cursor,
                        "msgBacklog",
                        "messagesConsumedCounter",
                        "numberOfEntriesSinceFirstNotAckedMessage",
                        "totalNonContiguousDeletedMessagesRange",
                    ),
                    _short(cursor.get("individuallyDeletedMessages", "-")),
                    cursor["state"],
                )
            table.add_section()
        _print(table)


def print_moves(document: Mapping[str, Any], *, beside: bool = False) -> None:
    """Print what a reset, a skip or an expiry will do or did."""
    kind, name = document["kind"], document["subscription"]
    title = f"What it means to {kind} {name}" if document["dryRun"] else f"{name}: {_DONE[kind]}"
    counts = ("messages", "acked", "skipped") if kind == "reset" else ("skipped", "messages")
    heads = {
        "messages": "replayed" if kind == "reset" else "not acked then",
        "acked": "of these acked",
        "skipped": "skipped, not acked",
    }
    table = _table(
        f"{title} (epoch {document['epoch']})",
        ("topic",),
        ("partition", "from", "to", *(heads[one] for one in counts)),
    )
    for one in document["moves"]:
        table.add_row(
            one["topic"], str(one["partition"]), one["from"], one["to"], *_numbers(one, *counts)
        )
    table.add_section()
    table.add_row("all", "", "", "", *_numbers(document, *counts))
    _print(table, beside=beside)
    if document["gone"]:
        gone = f"Kafka does not have {document['gone']:,} of the offsets any more"
        typer.echo(gone, err=beside)


def print_messages(name: str, messages: Sequence[Mapping[str, Any]]) -> None:
    table = _table(
        f"The first messages that {name} has not acked",
        ("position", "event time", "key", "value", "headers"),
    )
    for one in messages:
        headers = [f"{header}={shown(value)}" for header, value in one["headers"]]
        table.add_row(
            one["position"],
            instant(one["eventTimeMs"]),
            shown(one["key"]),
            shown(one["value"]),
            shown(", ".join(headers)),
        )
    _print(table)


def _table(
    title: str,
    left: Sequence[str],
    right: Sequence[str] = (),
    behind: Sequence[str] = (),
) -> Table:
    table = Table(title=title, title_justify="left")
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right")
    for name in behind:
        table.add_column(name, overflow="fold")
    return table


def _numbers(document: Mapping[str, Any], *names: str) -> list[str]:
    told = (document.get(name) for name in names)
    found = ("-" if one is None else one for one in told)
    return [f"{one:,.1f}" if isinstance(one, float) else _whole(one) for one in found]


def _whole(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _short(ranges: str, most: int = 120) -> str:
    return ranges if len(ranges) <= most else f"{ranges[:most].rpartition(',')[0]}, ...]"


def _print(table: RenderableType, *, beside: bool = False) -> None:
    table_console(_NARROWEST, stderr=beside).print(table)
