"""The demo's picture: event time against arrival, before and after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

_COLOURS: Final = ("#3b6fb6", "#d1702a", "#3a9a6b", "#8a5cb0", "#b0413e")


@dataclass(frozen=True, slots=True)
class Arrival:
    """One event as it was found in a topic.

    Attributes:
        key: Its key.
        producer: The producer that sent it.
        offset: Its place in its partition.
        event_time_ms: When it happened, epoch milliseconds.
    """

    key: bytes
    producer: str
    offset: int
    event_time_ms: int


def plot_arrivals(path: Path, before: Sequence[Arrival], after: Sequence[Arrival]) -> None:
    """Draw one key's events, event time over arrival, as they arrived and as they were released.

    The key is the one with the most events, so that the picture shows one order and not several.
    """
    # Imported here, as the command line must not wait for a plotting library it rarely needs.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(11, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    key = _busiest_key(before)
    start_ms = min((arrival.event_time_ms for arrival in before), default=0)
    producers = sorted({arrival.producer for arrival in before})
    _draw(left, _of_key(before, key), producers, start_ms)
    _draw(right, _of_key(after, key), producers, start_ms)
    left.set_title("before: as it arrived in Kafka")
    right.set_title("after: as the reorder job released it")
    left.set_ylabel("event time, s since the first")
    left.legend(loc="upper left", frameon=False, markerscale=4)
    figure.suptitle(f"Event time against arrival, key {key.decode(errors='replace')}")
    figure.savefig(path, dpi=110)


def _busiest_key(arrivals: Sequence[Arrival]) -> bytes:
    counts: dict[bytes, int] = {}
    for arrival in arrivals:
        counts[arrival.key] = counts.get(arrival.key, 0) + 1
    return max(sorted(counts), key=counts.__getitem__, default=b"")


def _of_key(arrivals: Sequence[Arrival], key: bytes) -> list[Arrival]:
    return sorted((a for a in arrivals if a.key == key), key=lambda arrival: arrival.offset)


def _draw(axes: Axes, arrivals: Sequence[Arrival], producers: Sequence[str], start_ms: int) -> None:
    """Draw each producer's events in a colour of its own, over their place in the arrival order."""
    for number, producer in enumerate(producers):
        places = [place for place, a in enumerate(arrivals) if a.producer == producer]
        times = [(arrivals[place].event_time_ms - start_ms) / 1000 for place in places]
        colour = _COLOURS[number % len(_COLOURS)]
        label = producer.partition("~")[0]
        axes.scatter(places, times, s=5, color=colour, label=label, linewidths=0)
    axes.set_xlabel("place in the order of arrival")
    axes.grid(visible=True, alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
