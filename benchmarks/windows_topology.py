"""The topologies of the windows benchmark: `BENCH_WINDOW` names one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from sequitur.consumer.topology import TopologyBuilder, bolt
from sequitur.windows import Count, Mean, join, session, tumbling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sequitur.consumer.topology import Event, KeyedBolt, Tuple

WITHIN_MS: Final = 2_000
GAP_MS: Final = 2_000


def side(event: Event) -> str:
    """Return "right" for events at an odd millisecond: the value ends in the time and a brace."""
    return "right" if (event.value or b"0}")[-2] % 2 else "left"


@bolt(fields=("key", "value"))
def times(pair: Tuple) -> Iterator[Any]:
    """Put the times of a pair out."""
    yield pair["key"], {"times": [pair["left_ms"], pair["right_ms"]]}


KINDS: Final[Mapping[str, Callable[[], KeyedBolt]]] = {
    "tumbling-count": lambda: tumbling("10 s", count=Count(), late="drop"),
    "tumbling-mean": lambda: tumbling("10 s", mean=Mean("usage"), count=Count(), late="drop"),
    "session": lambda: session(f"{GAP_MS} ms", count=Count(), late="drop"),
    "join": lambda: join(side, within=f"{WITHIN_MS} ms", late="drop"),
}

kind = os.environ.get("BENCH_WINDOW", "tumbling-count")
builder = TopologyBuilder(kind)
builder.set_spout("events")
builder.set_bolt("tested", KINDS[kind]()).fields_grouping("events", "key")
last = "tested"
if kind == "join":
    builder.set_bolt("times", times).local_grouping("tested")
    last = "times"
builder.set_output("out", value=None).local_grouping(last)
topology = builder.build()
