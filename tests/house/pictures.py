"""`make pictures`: those of docs/concepts.md, of a small stream and the job's rules.

Each event goes by what docs/concepts.md says: a clock for each partition, a frontier behind the
slowest of them, and for each key the last event time that was released.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

from tests.support.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable

FOLDER: Final = ROOT / "docs" / "pictures"
_WIDTH: Final = 720
_HEIGHT: Final = 330
_LEFT: Final = 52
_BOTTOM: Final = 44
_TOP: Final = 34
_COLOURS: Final = {
    "on time": "#3b6fb6",
    "rescued": "#3a9a6b",
    "late": "#b0413e",
    "frontier": "#333333",
    "partition 0": "#3b6fb6",
    "partition 1": "#d1702a",
    "newest event": "#999999",
}
_LEGEND_PX: Final = 120


@dataclass(frozen=True, slots=True)
class Event:
    """One event; times in seconds."""

    arrived_s: float
    happened_s: float
    partition: int
    key: str


def stream(end_s: float, *, silent_from_s: float = 1e9, seed: int = 7) -> list[Event]:
    """Return events of two partitions and some keys, in the order in which they arrive."""
    random = Random(seed)
    found = []
    for number in range(int(end_s * 4)):
        happened_s = number / 4
        partition = number % 2
        if partition == 1 and happened_s > silent_from_s:
            continue
        took_s = random.expovariate(0.9) + (1.0 if partition else 0.2)
        key = f"{partition}{random.randrange(3)}"
        found.append(Event(happened_s + took_s, happened_s, partition, key))
    return sorted(found, key=lambda event: event.arrived_s)


@dataclass
class Job:
    """The rules of the reorder job, one event at a time."""

    delay_s: float
    idle_s: float = 1e9
    clocks: dict[int, float] = field(default_factory=dict)
    seen: dict[int, float] = field(default_factory=dict)  # when each partition gave something
    frontier_s: float = -1e9
    held: list[Event] = field(default_factory=list)
    last_released: dict[str, float] = field(default_factory=dict)

    def take(self, event: Event) -> str:
        """Return what becomes of an event, and move the frontier."""
        fate = "on time"
        if event.happened_s < self.frontier_s:
            is_newer = event.happened_s >= self.last_released.get(event.key, -1e9)
            fate = "rescued" if is_newer else "late"
        if fate == "rescued":
            self.last_released[event.key] = event.happened_s
        if fate == "on time":
            self.held.append(event)
        clock_s = self.clocks.get(event.partition, -1e9)
        self.clocks[event.partition] = max(clock_s, event.happened_s)
        self.seen[event.partition] = event.arrived_s
        live = [
            clock
            for partition, clock in self.clocks.items()
            if event.arrived_s - self.seen[partition] < self.idle_s
        ]
        self.frontier_s = max(self.frontier_s, min(live) - self.delay_s)
        due = [one for one in self.held if one.happened_s <= self.frontier_s]
        self.held = [one for one in self.held if one.happened_s > self.frontier_s]
        for one in sorted(due, key=lambda one: one.happened_s):
            self.last_released[one.key] = one.happened_s
        return fate


class Chart:
    """A chart of event time over time of arrival, as SVG."""

    def __init__(self, title: str, end_s: float) -> None:
        self._end_s = end_s
        self._shapes: list[str] = []
        self._legend: list[str] = []
        self._text(_LEFT, 20, title, "font-weight='bold'")
        self._text(_WIDTH / 2, _HEIGHT - 8, "time of arrival, s", "text-anchor='middle'")
        turned = f"text-anchor='middle' transform='rotate(-90 14 {_HEIGHT / 2:g})'"
        self._text(14, _HEIGHT / 2, "event time, s", turned)
        for second in range(0, int(end_s) + 1, 5):
            x, y = self._place(second, second)
            self._text(x, _HEIGHT - _BOTTOM + 16, f"{second}", "text-anchor='middle'")
            self._text(_LEFT - 6, y + 4, f"{second}", "text-anchor='end'")
            grid = f"M{_LEFT} {y:.1f}H{_WIDTH - 10}M{x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}"
            self._shapes.append(f"<path d='{grid}' stroke='#e8e8e8'/>")

    def _place(self, arrived_s: float, happened_s: float) -> tuple[float, float]:
        x = _LEFT + arrived_s / self._end_s * (_WIDTH - _LEFT - 10)
        return x, _HEIGHT - _BOTTOM - happened_s / self._end_s * (_HEIGHT - _TOP - _BOTTOM)

    def _text(self, x: float, y: float, text: str, style: str = "") -> None:
        self._shapes.append(f"<text x='{x:.1f}' y='{y:.1f}' {style}>{text}</text>")

    def _explain(self, name: str) -> None:
        if name not in self._legend:
            x = _LEFT + 14 + _LEGEND_PX * len(self._legend)
            self._legend.append(name)
            dot = f"<circle cx='{x - 8}' cy='{_TOP + 12}' r='4' fill='{_COLOURS[name]}'/>"
            self._shapes.append(dot)
            self._text(x, _TOP + 16, name)

    def line(
        self, name: str, points: Iterable[tuple[float, float]], *, dashed: bool = False
    ) -> None:
        """Draw how something grows: it keeps its value until the next point."""
        self._explain(name)
        path = ""
        for arrived_s, happened_s in points:
            if happened_s >= 0 and arrived_s <= self._end_s:
                x, y = self._place(arrived_s, happened_s)
                path += f"H{x:.1f}V{y:.1f}" if path else f"M{x:.1f} {y:.1f}"
        dashes = " stroke-dasharray='5 4'" if dashed else ""
        style = f"fill='none' stroke='{_COLOURS[name]}' stroke-width='1.8'{dashes}"
        self._shapes.append(f"<path d='{path}' {style}/>")

    def dot(self, name: str, event: Event) -> None:
        """Draw an event."""
        if event.arrived_s <= self._end_s:
            self._explain(name)
            x, y = self._place(event.arrived_s, event.happened_s)
            self._shapes.append(
                f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.4' fill='{_COLOURS[name]}'/>"
            )

    def svg(self) -> str:
        """Return the picture."""
        head = (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {_HEIGHT}' "
            "font-family='sans-serif' font-size='12'>\n"
            "<rect width='100%' height='100%' fill='#fff'/>"
        )
        return "\n".join([head, *self._shapes, "</svg>", ""])


def frontier() -> str:
    """Two clocks, and the frontier behind the slower one; then one partition falls silent."""
    chart = Chart("The frontier: the slowest partition's clock, less the delay of 3 s", 30)
    job = Job(delay_s=3, idle_s=5)
    lines: dict[str, list[tuple[float, float]]] = {}
    for event in stream(28, silent_from_s=14):
        job.take(event)
        for partition, clock_s in job.clocks.items():
            lines.setdefault(f"partition {partition}", []).append((event.arrived_s, clock_s))
        lines.setdefault("frontier", []).append((event.arrived_s, job.frontier_s))
    for name in sorted(lines, reverse=True):
        chart.line(name, lines[name], dashed=name == "frontier")
    return chart.svg()


def fates(delay_s: float, title: str, *, rescue: bool = True) -> str:
    """What becomes of each event, and the frontier; without rescue, what is behind it is late."""
    chart = Chart(title, 30)
    job = Job(delay_s=delay_s)
    points = []
    for event in stream(30):
        fate = job.take(event)
        points.append((event.arrived_s, job.frontier_s))
        chart.dot("late" if fate == "rescued" and not rescue else fate, event)
    chart.line("frontier", points, dashed=True)
    return chart.svg()


def pictures() -> dict[str, str]:
    """Return all pictures by the names of their files."""
    return {
        "frontier.svg": frontier(),
        "delay-short.svg": fates(0.5, "A delay of 0.5 s, without rescue", rescue=False),
        "delay-long.svg": fates(3, "A delay of 3 s, without rescue", rescue=False),
        "rescue.svg": fates(0.5, "A delay of 0.5 s, with rescue"),
    }


def main() -> None:
    """Draw them."""
    FOLDER.mkdir(exist_ok=True)
    for name, svg in pictures().items():
        (FOLDER / name).write_text(svg, "utf-8")


if __name__ == "__main__":
    main()
