"""What `sequitur journal show` and `sequitur journal verify` print.

Reads the files only: takes no lock and changes nothing, so that the journal of a running producer
can be looked at too. Its newest round may then be half written and show as a torn tail.
"""

import dataclasses
import enum
import itertools
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sequitur.errors import JournalVersionError
from sequitur.producer.journal.disk import RealDisk
from sequitur.producer.journal.frames import (
    BatchFrame,
    Head,
    Waiting,
    frame_name,
    segment_name,
    segment_numbers,
)
from sequitur.producer.journal.live import Place
from sequitur.producer.journal.scan import Scan, scan_segment
from sequitur.producer.journal.state import JournalState, Recovered

# A live producer may remove a segment between the listing and the reading.
_READ_ATTEMPTS = 5


class JournalVerdict(enum.StrEnum):
    """What `verify` finds."""

    SOUND = "sound"
    TORN = "torn tail"
    CORRUPT = "corrupt"
    UNREADABLE = "unreadable"

    @property
    def exit_status(self) -> int:
        """0: a producer can start on it; 1: damaged; 2: no journal, or of another format."""
        return {JournalVerdict.CORRUPT: 1, JournalVerdict.UNREADABLE: 2}.get(self, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class DamageReport:
    """One damaged place."""

    offset: int
    length: int
    lost: str
    follows: str


@dataclasses.dataclass(frozen=True, slots=True)
class TornReport:
    """An unfinished round; a producer that starts cuts it off."""

    offset: int
    length: int
    frames: int


@dataclasses.dataclass(frozen=True, slots=True)
class SegmentReport:
    """One segment file."""

    name: str
    bytes: int
    version: int | None  # format version, None when its preamble is unreadable
    rounds: int
    frames: dict[str, int]  # good frames by type
    damages: tuple[DamageReport, ...]  # what cannot be read
    torn: TornReport | None  # the unfinished round at its end


@dataclasses.dataclass(frozen=True, slots=True)
class BatchReport:
    """One un-acked batch."""

    producer_id: int
    epoch: int
    base_sequence: int
    records: int
    bytes: int
    first_event: int
    last_event: int


@dataclasses.dataclass(frozen=True, slots=True)
class WaitingReport:
    """One batch that has no numbers yet."""

    records: int
    bytes: int
    first_event: int
    last_event: int


@dataclasses.dataclass(frozen=True, slots=True)
class PartitionReport:
    """One partition's numbering and what is still to be sent to it."""

    topic: str
    partition: int
    next_sequence: int
    through_event: int
    unacked: tuple[BatchReport, ...]
    waiting: tuple[WaitingReport, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class JournalReport:
    """What a journal's directory holds."""

    directory: str
    verdict: JournalVerdict  # the result of the check
    problems: tuple[str, ...]  # a sentence for each thing that is wrong with the journal as a whole
    producer: str | None  # the durable name, None when no head can be read
    producer_id: int | None  # from the broker, None before the first one
    epoch: int | None  # from the broker, None before the first one
    next_event: int  # sequence of the next event to be accepted
    # how far each source was read; as text where it is text, else as hex digits
    positions: dict[str, str]
    partitions: tuple[PartitionReport, ...]  # numbering and open batches
    segments: tuple[SegmentReport, ...]

    @property
    def exit_status(self) -> int:
        return self.verdict.exit_status


def inspect_journal(directory: Path) -> JournalReport:
    """Read and check all of a journal; raise nothing for what the files hold."""
    try:
        scans = _scan_segments(directory)
    except OSError as error:
        return _unreadable(directory, f"cannot be read: {error}")
    except JournalVersionError as error:
        return _unreadable(directory, str(error))
    if not scans:
        return _unreadable(directory, "holds no journal")
    problems = [*_sequence_problems(scans), *_head_problems(scans)]
    state = _best_state(scans)
    verdict = JournalVerdict.SOUND
    if problems or any(scan.damages for scan in scans):
        verdict = JournalVerdict.CORRUPT
    elif scans[-1].torn is not None:
        verdict = JournalVerdict.TORN
    recovered = state.recovered(None, fresh=False)
    identity = recovered.identity
    return JournalReport(
        directory=str(directory),
        verdict=verdict,
        problems=tuple(problems),
        producer=state.producer or None,
        producer_id=identity.producer_id if identity else None,
        epoch=identity.epoch if identity else None,
        next_event=recovered.next_event_sequence,
        positions={source: _readable(value) for source, value in recovered.positions.items()},
        partitions=tuple(_partition_reports(state, recovered)),
        segments=tuple(map(_segment_report, scans)),
    )


def report_as_json(report: JournalReport) -> str:
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def _scan_segments(directory: Path) -> list[Scan]:
    """Read one segment at a time: all together may be larger than memory."""
    disk = RealDisk(directory)
    for attempt in range(_READ_ATTEMPTS):
        numbers = segment_numbers(disk.names())
        try:
            return [
                scan_segment(disk.read(segment_name(n)), n, newest=n == numbers[-1])
                for n in numbers
            ]
        except FileNotFoundError:
            if not directory.is_dir() or attempt == _READ_ATTEMPTS - 1:
                raise
    raise AssertionError


def _unreadable(directory: Path, problem: str) -> JournalReport:
    return JournalReport(
        directory=str(directory),
        verdict=JournalVerdict.UNREADABLE,
        problems=(problem,),
        producer=None,
        producer_id=None,
        epoch=None,
        next_event=0,
        positions={},
        partitions=(),
        segments=(),
    )


def _sequence_problems(scans: list[Scan]) -> Iterable[str]:
    """Yield segments missing from the middle."""
    for before, after in itertools.pairwise(scans):
        if after.segment != before.segment + 1:
            first, last = segment_name(before.segment + 1), segment_name(after.segment - 1)
            missing = first if first == last else f"{first} to {last}"
            yield f"missing: {missing}; {segment_name(after.segment)} follows"


def _head_problems(scans: list[Scan]) -> Iterable[str]:
    """Heads that are missing, of another producer, or that disagree with the segment before."""
    producer: str | None = None
    before: Scan | None = None
    for scan in scans:
        name = segment_name(scan.segment)
        head = scan.frames[0].frame if scan.frames else None
        if not isinstance(head, Head):
            yield f"{name} does not begin with a readable head"
        else:
            if producer not in (None, head.producer):
                yield f"{name} belongs to producer {head.producer!r}, not to {producer!r}"
            producer = head.producer
            if (
                before is not None
                and scan.segment == before.segment + 1
                and head.previous_length != before.length
            ):
                yield (
                    f"{segment_name(before.segment)} has {before.length} bytes, but had "
                    f"{head.previous_length} when {name} was begun"
                )
        before = scan


def _best_state(scans: list[Scan]) -> JournalState:
    """Return the state as far as the good frames tell it."""
    heads = [p.frame for scan in scans for p in scan.frames if isinstance(p.frame, Head)]
    state = JournalState(heads[0].producer if heads else "")
    for scan in scans:
        for placed in scan.frames:
            place = Place(scan.segment, placed.at, placed.length)
            state.apply(placed.frame, place, part=placed.part)
    return state


def _segment_report(scan: Scan) -> SegmentReport:
    torn = scan.torn
    return SegmentReport(
        name=segment_name(scan.segment),
        bytes=scan.length,
        version=scan.version,
        rounds=sum(placed.last_in_round for placed in scan.frames),
        frames=dict(Counter(frame_name(type(placed.frame)).lower() for placed in scan.frames)),
        damages=tuple(
            DamageReport(damage.offset, damage.length, damage.lost, damage.follows)
            for damage in scan.damages
        ),
        torn=None if torn is None else TornReport(torn.offset, torn.length, torn.frames),
    )


def _partition_reports(state: JournalState, recovered: Recovered) -> Iterable[PartitionReport]:
    for key in sorted({*recovered.partitions, *recovered.unacked, *recovered.waiting}):
        topic, partition = key
        numbering = recovered.partitions.get(key)
        yield PartitionReport(
            topic=topic,
            partition=partition,
            next_sequence=numbering.next_sequence if numbering else 0,
            through_event=numbering.through_event_sequence if numbering else -1,
            unacked=tuple(
                BatchReport(
                    producer_id=batch.producer_id,
                    epoch=batch.epoch,
                    base_sequence=batch.base_sequence,
                    records=batch.record_count,
                    bytes=_bytes_of(state, batch),
                    first_event=batch.first_event_sequence,
                    last_event=batch.last_event_sequence,
                )
                for batch in recovered.unacked.get(key, ())
            ),
            waiting=tuple(
                WaitingReport(
                    records=batch.record_count,
                    bytes=_bytes_of(state, batch),
                    first_event=batch.first_event_sequence,
                    last_event=batch.last_event_sequence,
                )
                for batch in recovered.waiting.get(key, ())
            ),
        )


def _bytes_of(state: JournalState, batch: BatchFrame | Waiting) -> int:
    live = state.live.find(batch.key)
    return 0 if live is None else live.length


def _readable(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return value.hex()
    return text if text.isprintable() else value.hex()


def report_as_tables(report: JournalReport) -> RenderableType:
    summary = Table(show_header=False, box=None)
    identity = "none yet" if report.producer_id is None else f"{report.producer_id}"
    for name, value in (
        ("journal", report.directory),
        ("verdict", report.verdict.value),
        ("producer", report.producer or "unknown"),
        ("producer id", identity),
        ("epoch", "none yet" if report.epoch is None else str(report.epoch)),
        ("next event", str(report.next_event)),
        *((f"position of {source}", value) for source, value in report.positions.items()),
    ):
        summary.add_row(Text(name), Text(value))
    lines = [*report.problems, *_damage_lines(report.segments)]
    return Group(
        summary,
        _segments_table(report.segments),
        _partitions_table(report.partitions),
        *(Text(line) for line in lines),
    )


def _segments_table(segments: tuple[SegmentReport, ...]) -> Table:
    table = Table("segment", "bytes", "rounds", "frames", "state", title="Segments")
    for segment in segments:
        frames = ", ".join(f"{count} {name}" for name, count in sorted(segment.frames.items()))
        found = f"{len(segment.damages)} damaged" if segment.damages else "sound"
        state = f"{found}, torn tail" if segment.torn else found
        table.add_row(segment.name, str(segment.bytes), str(segment.rounds), frames, state)
    return table


def _partitions_table(partitions: tuple[PartitionReport, ...]) -> Table:
    table = Table(
        "partition",
        "next sequence",
        "un-acked batches",
        "records",
        "bytes",
        "waiting batches",
        "records",
        "bytes",
        title="Partitions",
    )
    for partition in partitions:
        table.add_row(
            Text(f"{partition.topic}-{partition.partition}"),
            str(partition.next_sequence),
            str(len(partition.unacked)),
            str(sum(batch.records for batch in partition.unacked)),
            str(sum(batch.bytes for batch in partition.unacked)),
            str(len(partition.waiting)),
            str(sum(batch.records for batch in partition.waiting)),
            str(sum(batch.bytes for batch in partition.waiting)),
        )
    return table


def _damage_lines(segments: tuple[SegmentReport, ...]) -> Iterable[str]:
    for segment in segments:
        for damage in segment.damages:
            yield f"{segment.name}, offset {damage.offset}: {damage.lost}; {damage.follows}"
        if segment.torn is not None:
            torn = segment.torn
            yield (
                f"{segment.name}, offset {torn.offset}: torn tail of {torn.length} bytes "
                f"({torn.frames} whole frame(s) in it), never known to be on disk. A producer "
                "that starts cuts it off"
            )
