"""Why a row went to a side output, and the headers that say so there.

The names are part of the output format: readers of the late or quarantine topic match on them.
"""

from __future__ import annotations

from typing import Final

LATE: Final = "late"
"""The event time is behind what was already released."""
STALE: Final = "stale"
"""In latest mode: not newer than what was already released of its key."""
MISSING: Final = "event-time-missing"
"""No event time where the setting says it stands."""
UNPARSABLE: Final = "event-time-unparsable"
"""Not written as the setting says, or the JSON around it is broken."""
NEGATIVE: Final = "event-time-negative"
"""Before 1970."""
TOO_FAR_FUTURE: Final = "event-time-too-far-future"
"""Beyond now + max_future_skew: a clock that is wrong, and must not move ours."""
TOO_LARGE: Final = "record-too-large"
"""Larger than the output topic takes."""
NO_KEY: Final = "key-missing"
"""Without a key, which a compacted output topic takes of none."""
TOO_EARLY: Final = "event-time-too-early"
"""Before min_event_time."""
LIKELY_UNITS: Final = {
    "s": "event-time-likely-seconds",
    "ms": "event-time-likely-milliseconds",
    "us": "event-time-likely-microseconds",
    "ns": "event-time-likely-nanoseconds",
}
"""Too early or too far in the future, and neither if the number counted these: by unit."""
QUARANTINE_REASONS: Final = (
    MISSING,
    UNPARSABLE,
    NEGATIVE,
    TOO_FAR_FUTURE,
    TOO_EARLY,
    *LIKELY_UNITS.values(),
    TOO_LARGE,
    NO_KEY,
)
# Headers added, in this order, behind the row's own headers, and then those of its place.
REASON_HEADER: Final = "sequitur-reason"
LATE_BY_HEADER: Final = "sequitur-late-by-ms"  # behind the frontier, or behind its key if stale
FRONTIER_HEADER: Final = "sequitur-frontier"  # epoch ms; the frontier the row was held against
LAST_RELEASED_HEADER: Final = "sequitur-last-released"  # epoch ms; of its key, if known
OVERSIZED_HEADER: Final = "sequitur-oversized-file"
"""Of a record that stands for one too large for its topic: where the whole one is, in the job's
checkpoint."""
