"""What a journal counts."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class JournalStatistics:
    """What a journal holds and has done since it was opened.

    Attributes:
        segments: segment files.
        disk_bytes: their size.
        live_bytes: what is still needed of them.
        unacked_batches: batches that have numbers, and no ack mark.
        waiting_batches: batches that have no numbers yet.
        rounds: rounds appended.
        syncs: syncs done.
    """

    segments: int
    disk_bytes: int
    live_bytes: int
    unacked_batches: int
    waiting_batches: int
    rounds: int
    syncs: int
