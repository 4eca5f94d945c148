"""What a journal counts."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class JournalStatistics:
    """What a journal holds and has done since it was opened."""

    segments: int
    disk_bytes: int
    live_bytes: int  # what is still needed of them
    unacked_batches: int  # batches that have numbers, and no ack mark
    waiting_batches: int
    rounds: int
    syncs: int
