"""Windows, and what else bolts do with the events of a key over time.

Each of these functions returns a keyed bolt, which reads the spout by its key.
"""

from sequitur.consumer.topology.windows.aggregates import (
    Aggregate,
    Collect,
    Count,
    Max,
    Mean,
    Min,
    Quantiles,
    Reduce,
    Sum,
    Top,
)
from sequitur.consumer.topology.windows.aligned import AlignedWindows, hopping, tumbling
from sequitur.consumer.topology.windows.passing import (
    DuplicatesBolt,
    RateBolt,
    deduplicate,
    rate_limit,
)
from sequitur.consumer.topology.windows.sessions import SessionWindows, session
from sequitur.consumer.topology.windows.silence import SilenceBolt, on_silence
from sequitur.consumer.topology.windows.sliding import SlidingWindows, sliding

__all__ = [
    "Aggregate",
    "AlignedWindows",
    "Collect",
    "Count",
    "DuplicatesBolt",
    "Max",
    "Mean",
    "Min",
    "Quantiles",
    "RateBolt",
    "Reduce",
    "SessionWindows",
    "SilenceBolt",
    "SlidingWindows",
    "Sum",
    "Top",
    "deduplicate",
    "hopping",
    "on_silence",
    "rate_limit",
    "session",
    "sliding",
    "tumbling",
]
