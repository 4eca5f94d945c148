"""The report of a journal as tables for a terminal."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sequitur.producer.journal.report import JournalReport, PartitionReport, SegmentReport


def report_as_tables(report: JournalReport) -> RenderableType:
    """Return the report for a terminal."""
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
                f"({torn.frames} whole frame(s) in it), never known to be on disk; "
                f"a producer that starts cuts it off"
            )
