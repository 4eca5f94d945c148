"""The demo's picture: event time against the order of arrival, and that of release."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from sequitur.base.extras import load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PICTURE: Final = "the demo's picture"
_COLOURS: Final = ("#3b6fb6", "#d1702a", "#3a9a6b", "#8a5cb0", "#b0413e")
_LIMIT: Final = "#777777"
_NARROWEST: Final = 2.2
_WIDER: Final = 3.5
"""Points that a producer is drawn wider than the next, where one hides the other."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One event as it was found in a topic."""

    key: bytes
    producer: str
    offset: int  # its place in its partition
    event_time_ms: int  # when it happened, epoch milliseconds


def plot_arrivals(
    before: Sequence[Arrival],
    after: Sequence[Arrival],
    *,
    inversions: tuple[int, int],
    delay_ms: int | None,
) -> Figure:
    """Draw one key's events, event time over place, as they arrived and as they were released.

    The key is the one with the most events, so that the picture shows one order and not several.
    """
    # Loaded here, as the command line must not wait for a plotting library it rarely needs.
    agg = load("matplotlib.backends.backend_agg", _PICTURE)

    figure: Figure = load("matplotlib.figure", _PICTURE).Figure(
        figsize=(11, 5), dpi=110, layout="constrained"
    )
    agg.FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    key = _busiest_key(before)
    start_ms = min((arrival.event_time_ms for arrival in before), default=0)
    producers = sorted({arrival.producer for arrival in before})
    arrived = _of_key(before, key)
    if delay_ms is not None:
        _draw_delay(left, arrived, start_ms, delay_ms)
    _draw(left, arrived, producers, start_ms)
    _draw(right, _of_key(after, key), producers, start_ms, wider=_WIDER)
    left.set_title(f"before: as it arrived in Kafka\n{inversions[0]:,} inversions in all keys")
    right.set_title(f"after: as the reorder job released it\n{inversions[1]:,} inversions")
    left.set_xlabel("place in the order of arrival")
    right.set_xlabel("place in the order of release")
    left.set_ylabel("event time, s since the first")
    drawn, labels = left.get_legend_handles_labels()
    figure.legend(
        drawn, labels, loc="outside lower center", ncols=len(drawn), frameon=False, markerscale=3
    )
    figure.suptitle(
        f"Events of key {key.decode(errors='replace')}. "
        "An inversion: an event behind a newer one of its key"
    )
    return figure


def _busiest_key(arrivals: Sequence[Arrival]) -> bytes:
    counts: dict[bytes, int] = {}
    for arrival in arrivals:
        counts[arrival.key] = counts.get(arrival.key, 0) + 1
    return max(sorted(counts), key=counts.__getitem__, default=b"")


def _of_key(arrivals: Sequence[Arrival], key: bytes) -> list[Arrival]:
    return sorted((a for a in arrivals if a.key == key), key=lambda arrival: arrival.offset)


def _draw(
    axes: Axes,
    arrivals: Sequence[Arrival],
    producers: Sequence[str],
    start_ms: int,
    *,
    wider: float = 0.0,
) -> None:
    """Draw each producer's events in a colour of its own, over their place.

    Each may be drawn wider than the next, over it: where all have the same event times, too, each
    is then seen.
    """
    for number, producer in enumerate(producers):
        places = [place for place, a in enumerate(arrivals) if a.producer == producer]
        times = [(arrivals[place].event_time_ms - start_ms) / 1000 for place in places]
        colour = _COLOURS[number % len(_COLOURS)]
        label = producer.partition("~")[0]
        width = _NARROWEST + wider * (len(producers) - 1 - number)
        axes.scatter(places, times, s=width**2, color=colour, label=label, linewidths=0)
    axes.grid(visible=True, alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _draw_delay(axes: Axes, arrivals: Sequence[Arrival], start_ms: int, delay_ms: int) -> None:
    """Draw how far behind the newest event of the order one may be without being late."""
    times = (arrival.event_time_ms - start_ms for arrival in arrivals)
    newest = [time_ms / 1000 for time_ms in accumulate(times, max)]
    limits = [max(0.0, time_s - delay_ms / 1000) for time_s in newest]
    label = f"the delay, {delay_ms / 1000:g} s behind the newest: an event below it is late"
    axes.plot(limits, color=_LIMIT, linestyle="--", linewidth=1.2, label=label)
    axes.fill_between(range(len(limits)), 0, limits, color=_LIMIT, alpha=0.12, linewidth=0)
