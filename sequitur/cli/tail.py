"""`sequitur tail`: shows the records of a topic, each as text or as JSON."""

from __future__ import annotations

import contextlib
import enum
import heapq
import json
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.text import Text

from sequitur.base.copy_headers import DEAD_EVENT_TIME_HEADER, DEAD_REASON_HEADER
from sequitur.base.flags import with_flags
from sequitur.cli.console import KafkaJob, plain, shown
from sequitur.cli.topic_reader import open_topic
from sequitur.consumer.reorder import parse_event_time_spec
from sequitur.consumer.reorder.reasons import REASON_HEADER
from sequitur.consumer.reorder.timestamps import EVENT_TIME_HEADER
from sequitur.consumer.subscription.inspection import moment
from sequitur.consumer.subscription.position import (
    Edge,
    Position,
    ToPositions,
    ToTime,
    parse_time_ms,
)
from sequitur.producer import EVENT_ID_HEADER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sequitur.cli.topic_reader import OpenTopic, TopicRecord
    from sequitur.consumer.reorder import EventTimeSpec
    from sequitur.consumer.subscription.position import ResetTarget
    from sequitur.producer import KafkaSettings

_FURTHER_BACK: Final = 8
_EVENT_TIME_HEADERS: Final = (EVENT_TIME_HEADER, DEAD_EVENT_TIME_HEADER)
_REASON_HEADERS: Final = (REASON_HEADER, DEAD_REASON_HEADER)
_TOLD: Final = frozenset((EVENT_ID_HEADER, *_REASON_HEADERS, *_EVENT_TIME_HEADERS))
"""Headers whose values are shown by name."""

_NEWEST: Final = 10


class ValueStyle(enum.Enum):
    TEXT = "text"
    JSON = "json"
    HEX = "hex"


@with_flags(KafkaJob)
def show_tail(
    settings: KafkaJob,
    topic: Annotated[str, typer.Argument(help="The topic")],
    count: Annotated[
        int | None,
        typer.Option(
            "-n",
            help=f"How many of the newest records to show, over all partitions ({_NEWEST})",
            min=1,
        ),
    ] = None,
    from_earliest: Annotated[
        bool, typer.Option("--from-earliest", help="Start at the first record that is there")
    ] = False,
    from_latest: Annotated[
        bool, typer.Option("--from-latest", help="Show only records that arrive from now on")
    ] = False,
    from_time: Annotated[
        str | None,
        typer.Option(help="Start at a timestamp: ISO 8601, or milliseconds since 1970"),
    ] = None,
    from_offset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="P:O",
            help="Start at an offset of a partition. Only partitions that are named are shown. "
            "May be repeated",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Show records that arrive, until Ctrl-C")
    ] = True,
    value: Annotated[
        ValueStyle,
        typer.Option(
            help="Show values as text, json or hex. Values that are not JSON are shown as text"
        ),
    ] = ValueStyle.TEXT,
    event_time: Annotated[
        str | None,
        typer.Option(
            help="json:PATH, header:NAME or kafka-timestamp. Default: the header in which jobs "
            "store an event time, else the timestamp"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per line")] = False,
) -> None:
    """Show the records of a topic: the newest, then those that arrive.

    A record has a line with its place (PARTITION:OFFSET), timestamp, key and value. The lines below
    have its event time, its event id, the reason why it is in a side topic, and its headers.

    Records of a partition are shown in offset order. Without a --from option, the command begins
    with the newest records by timestamp. Bytes that are not text are shown in base64. Partitions
    that are added while the command runs are not shown.
    """
    starts: list[ResetTarget | int] = []
    if count is not None:
        starts.append(count)
    if from_earliest:
        starts.append(Edge.EARLIEST)
    if from_latest:
        starts.append(Edge.LATEST)
    if from_time is not None:
        starts.append(ToTime(parse_time_ms(from_time)))
    if from_offset:
        starts.append(ToPositions(tuple(map(Position.parse, from_offset))))
    if len(starts) > 1:
        raise typer.BadParameter(
            "give one of -n, --from-earliest, --from-latest, --from-time and --from-offset"
        )
    spec = None if event_time is None else parse_event_time_spec(event_time)
    console = Console(highlight=False)
    for record in tail(settings.kafka, topic, [*starts, _NEWEST][0], follows=follow):
        found = ShownRecord.of(topic, record, spec, value)
        if as_json:
            typer.echo(json.dumps(found.as_json()))
        else:
            console.print(found.as_text(), soft_wrap=True)


def tail(
    kafka: KafkaSettings, topic: str, start: ResetTarget | int, *, follows: bool
) -> Iterator[TopicRecord]:
    """Yield a topic's records, each partition in offset order."""
    with open_topic(kafka, topic) as opened:
        if isinstance(start, int):
            yield from _last(opened, start)
            starts = {partition: end for partition, (_, end) in opened.spans.items()}
        else:
            starts = _starts(opened, start)
            if not follows:
                spans = {one: (first, opened.spans[one][1]) for one, first in starts.items()}
                yield from opened.read(spans)
        if follows:
            yield from opened.follow(starts)


def newest(found: Mapping[int, Sequence[TopicRecord]], count: int) -> list[TopicRecord]:
    """Return the newest records by timestamp, with each partition in its order."""
    backwards = (reversed(records) for records in found.values())
    merged = heapq.merge(*backwards, key=lambda record: -record.timestamp_ms)
    return list(islice(merged, count))[::-1]


def _last(opened: OpenTopic, count: int) -> list[TopicRecord]:
    """Return the newest records over all partitions.

    Not each offset has a record: where a stretch has too few, it is begun further back.
    """
    found: dict[int, list[TopicRecord]] = {}
    wanted = {partition: count for partition, (first, end) in opened.spans.items() if first < end}
    while wanted:
        spans = {}
        for partition, offsets in wanted.items():
            first, end = opened.spans[partition]
            spans[partition] = max(first, end - offsets), end
            found[partition] = []
        for record in opened.read(spans):
            found[record.partition].append(record)
        wanted = {
            partition: offsets * _FURTHER_BACK
            for partition, offsets in wanted.items()
            if len(found[partition]) < count and spans[partition][0] > opened.spans[partition][0]
        }
    return newest(found, count)


def _starts(opened: OpenTopic, start: ResetTarget) -> dict[int, int]:
    match start:
        case Edge.EARLIEST:
            return {partition: first for partition, (first, _) in opened.spans.items()}
        case Edge.LATEST:
            return {partition: end for partition, (_, end) in opened.spans.items()}
        case ToTime(time_ms):
            return opened.offsets_at(time_ms)
        case ToPositions(positions):
            wanted = {one.within([opened.name]).partition: one.offset for one in positions}
            # For a missing offset, the client would begin at the first one.
            return {
                partition: min(max(first, wanted[partition]), end)
                for partition, (first, end) in opened.spans.items()
                if partition in wanted
            }


@dataclass(frozen=True, slots=True)
class ShownRecord:
    topic: str
    record: TopicRecord
    # its event time, if it has one: from the user's field, else from the jobs' header
    event_time_ms: int | None
    style: ValueStyle

    @classmethod
    def of(
        cls, topic: str, record: TopicRecord, event_time: EventTimeSpec | None, style: ValueStyle
    ) -> ShownRecord:
        if event_time is None:
            time_ms = None
            with contextlib.suppress(ValueError):
                time_ms = int(_header(record, _EVENT_TIME_HEADERS) or "")
        else:
            time_ms = event_time.of(record.value, record.headers, record.timestamp_ms)
        return cls(topic, record, time_ms, style)

    def as_json(self) -> dict[str, Any]:
        record = self.record
        return {
            "topic": self.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            "key": plain(record.key),
            "value": self._value(),
            "headers": [[name, plain(value)] for name, value in record.headers],
            "event_time_ms": self.event_time_ms,
            "event_id": _header(record, (EVENT_ID_HEADER,)),
            "reason": _header(record, _REASON_HEADERS),
        }

    def as_text(self) -> Text:
        """Return place, timestamp, key and value; on a second line event time, id and headers."""
        record, value = self.record, self._value()
        if documents := self._documents():
            value = json.dumps(*documents, indent=2, ensure_ascii=False)
        place = Text(f"{record.partition}:{record.offset}", style="bold")
        stamped = Text(moment(record.timestamp_ms) or "-", style="dim")
        text = Text("  ").join([place, stamped, shown(plain(record.key)), shown(value)])
        if found := [*self._told(), *self._own_headers()]:
            text.append("\n    ").append_text(Text("  ").join(found))
        return text

    def _value(self) -> Any:
        raw = self.record.value
        if raw is not None and self.style is ValueStyle.HEX:
            return {"hex": raw.hex()}
        return next(iter(self._documents()), plain(raw))

    def _documents(self) -> list[Any]:
        """Return the value as a JSON document, if it is one and has to be shown as one."""
        if self.style is ValueStyle.JSON:
            with contextlib.suppress(ValueError, RecursionError):
                return [json.loads(self.record.value or b"")]
        return []

    def _told(self) -> Iterator[Text]:
        """Yield the project's own headers in words."""
        if self.event_time_ms is not None:
            yield Text(f"event time {moment(self.event_time_ms) or f'{self.event_time_ms} ms'}")
        for name, headers in (("id", (EVENT_ID_HEADER,)), ("reason", _REASON_HEADERS)):
            if (value := _header(self.record, headers)) is not None:
                yield Text(f"{name} ").append_text(shown(value))

    def _own_headers(self) -> Iterator[Text]:
        for name, value in self.record.headers:
            if name not in _TOLD:
                yield shown(name).append("=").append_text(shown(plain(value)))


def _header(record: TopicRecord, names: Sequence[str]) -> str | None:
    """Return the first of the named headers that a record has, as text."""
    found = (record.header(name) for name in names)
    raw = next((one for one in found if one is not None), None)
    return None if raw is None else raw.decode(errors="backslashreplace")
