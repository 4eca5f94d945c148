"""Builds the state of a journal from its segments, one segment at a time."""

from collections.abc import Iterable, Sequence

from sequitur.errors import JournalCorruptError, JournalNameError
from sequitur.producer.journal.frames import Head
from sequitur.producer.journal.live import Place
from sequitur.producer.journal.scan import TornTail, scan_segment, segment_name
from sequitur.producer.journal.state import JournalState


def replay(
    segments: Iterable[tuple[int, bytes]], *, newest: int, producer: str
) -> tuple[JournalState, TornTail | None, Sequence[int]]:
    """Return the state that segments hold, oldest first."""
    state = JournalState(producer)
    torn: TornTail | None = None
    lengths: list[int] = []
    expected: int | None = None
    for number, data in segments:
        name = segment_name(number)
        if expected is not None and number != expected:
            raise JournalCorruptError(
                segment_name(expected), 0, "the whole file is missing", f"{name} follows"
            )
        scan = scan_segment(data, number, newest=number == newest)
        if scan.damages:
            raise scan.damages[0].error(name)
        torn = scan.torn
        head = scan.frames[0].frame
        if not isinstance(head, Head):
            raise JournalCorruptError(name, 0, "the head frame is missing", "other frames follow")
        if head.producer != producer:
            raise JournalNameError(head.producer, producer)
        if lengths and head.previous_length != lengths[-1]:
            raise JournalCorruptError(
                segment_name(number - 1),
                lengths[-1],
                f"the file had {head.previous_length} bytes when {name} was begun",
                f"{name} follows",
            )
        for placed in scan.frames:
            place = Place(number, placed.at, placed.length)
            state.apply(placed.frame, place, part=placed.part)
        lengths.append(scan.length if torn is None else torn.offset)
        expected = number + 1
        del data, scan  # before the next is read
    return state, torn, lengths
