"""Dead letters: events that the process job gave up, read from its dead-letter topic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self

from sequitur.base.copy_headers import (
    DEAD_ATTEMPTS_HEADER,
    DEAD_COMPONENT_HEADER,
    DEAD_DETAIL_HEADER,
    DEAD_EVENT_TIME_HEADER,
    DEAD_HEADERS,
    DEAD_PATH_HEADER,
    DEAD_REASON_HEADER,
    DEAD_STREAM_HEADER,
    DEAD_TIME_HEADER,
    DEAD_TOPOLOGY_HEADER,
    SOURCE_OFFSET_HEADER,
    SOURCE_PARTITION_HEADER,
    SOURCE_TOPIC_HEADER,
)
from sequitur.cli.console import plain
from sequitur.consumer.reorder.reasons import OVERSIZED_HEADER
from sequitur.consumer.subscription.message_copies import SUBSCRIPTION_HEADER
from sequitur.consumer.topology import Place
from sequitur.errors import CheckpointError, NotADeadLetterError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from sequitur.cli.topic_reader import TopicRecord
    from sequitur.pipelines.store.storage import Location


_ADDED: Final = frozenset(
    (
        *DEAD_HEADERS,
        SOURCE_TOPIC_HEADER,
        SOURCE_PARTITION_HEADER,
        SOURCE_OFFSET_HEADER,
        SUBSCRIPTION_HEADER,
    )
)
_PATH_SEPARATOR: Final = " > "


@dataclass(frozen=True, slots=True)
class DeadLetter:
    partition: int  # where it is in the dead-letter topic
    offset: int
    reason: str  # why its last attempt failed; one of `FailReason`, or of a newer version
    detail: str  # the traceback, or what is known
    attempts: int  # how often it was tried
    path: tuple[str, ...]  # the components that the failed tuple had come through
    topology: str  # the topology of these components
    subscription: str  # the subscription whose receivers gave it up; empty if a job did
    failed_at_ms: int  # when it was given up, epoch milliseconds
    event_time_ms: int
    source: Place
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    # where the whole event is in the job's checkpoint, if it is too large for the topic: value and
    # headers are then missing here, and maybe key and detail
    file: str | None = None
    # the bolt that made it without an input; None for an event. Its value is then its values as
    # text, and only the file can give it back
    component: str | None = None
    stream: str | None = None  # the stream that it was emitted to; None for an event
    # the key and value to give back, as in the file
    kept: tuple[bytes | None, bytes | None] | None = None

    @classmethod
    def of(cls, record: TopicRecord) -> Self:
        reason, path = _text(record, DEAD_REASON_HEADER), _text(record, DEAD_PATH_HEADER, "")
        topic, file = _text(record, SOURCE_TOPIC_HEADER), _file(record)
        has_bolt = record.header(DEAD_COMPONENT_HEADER) is not None
        # No topic has such a name: a tuple that a bolt made, or a timer of a key.
        is_made = "/" in topic or (topic in {"", "~"} and has_bolt)
        if is_made and file is None:
            raise _none_of(record, f"{topic!r} is not a topic, and no file has a tuple of a bolt")
        return cls(
            partition=record.partition,
            offset=record.offset,
            reason=reason,
            detail=_text(record, DEAD_DETAIL_HEADER, ""),
            attempts=_number(record, DEAD_ATTEMPTS_HEADER),
            path=tuple(path.split(_PATH_SEPARATOR)) if path else (),
            topology=_text(record, DEAD_TOPOLOGY_HEADER, ""),
            subscription=_text(record, SUBSCRIPTION_HEADER, ""),
            failed_at_ms=_number(record, DEAD_TIME_HEADER),
            event_time_ms=_number(record, DEAD_EVENT_TIME_HEADER),
            source=Place(
                topic,
                _number(record, SOURCE_PARTITION_HEADER),
                _number(record, SOURCE_OFFSET_HEADER),
            ),
            timestamp_ms=record.timestamp_ms,
            key=record.key,
            value=record.value,
            headers=() if is_made else _own_headers(record.headers),
            file=file,
            component=_text(record, DEAD_COMPONENT_HEADER, "") if is_made else None,
            stream=_text(record, DEAD_STREAM_HEADER, "") if is_made else None,
        )

    def whole(self, checkpoint: Location) -> Self:
        """Return the dead letter with the whole event from the job's checkpoint, if it is there."""
        if self.file is None:
            return self
        # A base installation has no Arrow, but lists subscriptions' dead letters.
        from sequitur.pipelines.rows.oversized import read_oversized  # noqa: PLC0415

        key, value, headers, detail, place = read_oversized(checkpoint, self.file)
        if self.component is not None:
            # Anybody may write into the topic, so its records must not decide what is unpickled.
            if place != self.source:
                raise CheckpointError(
                    f"dead letter {self.partition}:{self.offset} is of {self.source}, and its file "
                    f"{self.file} of {place}"
                )
            return replace(self, detail=detail or self.detail, kept=(key, value))
        return replace(
            self, key=key, value=value, headers=headers, detail=detail or self.detail, file=None
        )

    @property
    def error(self) -> str:
        """The detail's most telling line: the last, since a traceback ends with the exception."""
        lines = self.detail.strip().splitlines()
        return lines[-1].strip() if lines else ""

    def listed(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "offset": self.offset,
            "reason": self.reason,
            "attempts": self.attempts,
            "path": list(self.path),
            "key": plain(self.key),
            "event_time_ms": self.event_time_ms,
            "failed_at_ms": self.failed_at_ms,
            "source": self.source._asdict(),
            "component": self.component,
            "stream": self.stream,
            "error": self.error,
            "file": self.file,
        }

    def as_json(self) -> dict[str, Any]:
        """Return all fields as plain values. Bytes that are not text become base64."""
        return {
            **self.listed(),
            "topology": self.topology,
            "subscription": self.subscription,
            "timestamp_ms": self.timestamp_ms,
            "value": plain(self.value),
            "headers": [[name, plain(value)] for name, value in self.headers],
            "detail": self.detail,
        }


@dataclass(slots=True)
class Selection:
    """The selected dead letters, and the number of records that are no dead letters."""

    reason: str | None = None  # only those with this reason
    key: bytes | None = None  # only those with this key
    foreign: int = 0  # how many records so far came from another program and are no dead letters

    def of(self, records: Iterable[TopicRecord]) -> Iterator[DeadLetter]:
        for record in records:
            try:
                letter = DeadLetter.of(record)
            except NotADeadLetterError:
                self.foreign += 1
                continue
            if self.reason in {None, letter.reason} and self.key in {None, letter.key}:
                yield letter


def request_rows(letters: Iterable[DeadLetter]) -> pa.Table:
    """Return the events of dead letters, as rows of a replay request.

    An event that was given up several times is one row.
    """
    import pyarrow as pa  # noqa: PLC0415 - as above

    from sequitur.pipelines.rows.columns import RUN_ARROW_SCHEMA  # noqa: PLC0415

    latest: dict[tuple[Any, ...], DeadLetter] = {}
    for letter in letters:
        # Timers of several times may have one place.
        place = letter.source, letter.event_time_ms, letter.key if letter.component else None
        known = latest.get(place)
        if known is None or known.failed_at_ms <= letter.failed_at_ms:
            latest[place] = letter
    rows = [
        {
            **letter.source._asdict(),
            "timestamp_ms": letter.timestamp_ms,
            **dict(zip(("key", "value"), letter.kept or (letter.key, letter.value), strict=True)),
            "headers": [{"key": name, "value": value} for name, value in letter.headers] or None,
            "output_partition": None,
            "event_time_ms": letter.event_time_ms,
            "reason": None,
        }
        for letter in latest.values()
    ]
    return pa.Table.from_pylist(rows, RUN_ARROW_SCHEMA)


def _own_headers(
    headers: tuple[tuple[str, bytes | None], ...],
) -> tuple[tuple[str, bytes | None], ...]:
    """Return the event's own headers: the job adds its headers after them, each once.

    An event may have had headers of the same names, as one of a late topic that is read again has.
    """
    added = set(_ADDED)
    own = []
    if headers and headers[-1][0] == OVERSIZED_HEADER:
        headers = headers[:-1]  # the job's own header is the last one
    for name, value in reversed(headers):
        if name in added:
            added.remove(name)
        else:
            own.append((name, value))
    return tuple(reversed(own))


def _file(record: TopicRecord) -> str | None:
    if record.headers and record.headers[-1][0] == OVERSIZED_HEADER:
        return (record.headers[-1][1] or b"").decode()
    return None


def _text(record: TopicRecord, header: str, default: str | None = None) -> str:
    raw = record.header(header)
    if raw is None:
        if default is None:
            raise _none_of(record, f"it has no header {header}")
        return default
    return raw.decode(errors="backslashreplace")


def _number(record: TopicRecord, header: str) -> int:
    text = _text(record, header)
    try:
        return int(text)
    except ValueError:
        raise _none_of(record, f"{header} is {text!r}, not a number") from None


def _none_of(record: TopicRecord, why: str) -> NotADeadLetterError:
    return NotADeadLetterError(
        f"record {record.partition}:{record.offset} is not a dead letter: {why}"
    )
