"""Windows, and what else bolts do with the events of a key over time.

Each of these functions returns a keyed bolt, which reads the spout by its key. `stream` makes a
whole topology in one line.
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
from sequitur.consumer.topology.windows.aligned import hopping, tumbling
from sequitur.consumer.topology.windows.joins import join, join_table
from sequitur.consumer.topology.windows.one_line import EventStream, WindowedStream, stream
from sequitur.consumer.topology.windows.passing import deduplicate, rate_limit
from sequitur.consumer.topology.windows.sessions import session
from sequitur.consumer.topology.windows.silence import on_silence
from sequitur.consumer.topology.windows.sliding import sliding

__all__ = [
    "Aggregate",
    "Collect",
    "Count",
    "EventStream",
    "Max",
    "Mean",
    "Min",
    "Quantiles",
    "Reduce",
    "Sum",
    "Top",
    "WindowedStream",
    "deduplicate",
    "hopping",
    "join",
    "join_table",
    "on_silence",
    "rate_limit",
    "session",
    "sliding",
    "stream",
    "tumbling",
]
