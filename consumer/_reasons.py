"""Why a row went to a side output, and the headers that say so there.

The names are part of the output format: a reader of the late or quarantine topic matches on them.
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
"""Neither epoch milliseconds nor an ISO 8601 time, or the JSON around it is broken."""

NEGATIVE: Final = "event-time-negative"
"""Before 1970."""

TOO_FAR_FUTURE: Final = "event-time-too-far-future"
"""Beyond now + max_future_skew: a clock that is wrong, and must not move ours."""

QUARANTINE_REASONS: Final = (MISSING, UNPARSABLE, NEGATIVE, TOO_FAR_FUTURE)

# Headers added, in this order, behind the row's own headers.
REASON_HEADER: Final = "sequitur-reason"
LATE_BY_HEADER: Final = "sequitur-late-by-ms"  # behind the frontier, or behind its key if stale
FRONTIER_HEADER: Final = "sequitur-frontier"  # epoch ms; the frontier the row was held against
LAST_RELEASED_HEADER: Final = "sequitur-last-released"  # epoch ms; of its key, where that is known
SOURCE_TOPIC_HEADER: Final = "sequitur-source-topic"
SOURCE_PARTITION_HEADER: Final = "sequitur-source-partition"
SOURCE_OFFSET_HEADER: Final = "sequitur-source-offset"
