"""The demo's picture says what it shows."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.collections import PathCollection

from sequitur.cli.demo import Arrival, plot_arrivals


def _arrivals(*events: tuple[str, int]) -> list[Arrival]:
    return [Arrival(b"k", name, place, time_ms) for place, (name, time_ms) in enumerate(events)]


_BEFORE = _arrivals(("a~1", 4_000), ("a~1", 16_000), ("b~1", 4_000), ("c~1", 4_000))
_AFTER = _arrivals(("a~1", 4_000), ("b~1", 4_000), ("c~1", 4_000), ("a~1", 16_000))


@pytest.mark.promise("cli-make-demo-fresh")
def test_the_panels_are_named_by_what_they_show() -> None:
    """The order of arrival beside that of release, with the inversions that each has."""
    figure = plot_arrivals(_BEFORE, _AFTER, inversions=(1_002, 0), delay_ms=10_000)
    left, right = figure.axes
    assert left.get_xlabel() == "place in the order of arrival"
    assert right.get_xlabel() == "place in the order of release"
    assert "1,002 inversions" in left.get_title()
    assert "0 inversions" in right.get_title()


@pytest.mark.promise("cli-make-demo-fresh")
def test_every_producer_is_seen_where_all_have_the_same_times() -> None:
    """What is drawn over another is narrower."""
    figure = plot_arrivals(_BEFORE, _AFTER, inversions=(2, 0), delay_ms=None)
    drawn = [one for one in figure.axes[1].collections if isinstance(one, PathCollection)]
    assert [one.get_label() for one in drawn] == ["a", "b", "c"]
    sizes = [float(one.get_sizes()[0]) for one in drawn]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 3


@pytest.mark.promise("cli-make-demo-fresh")
def test_the_delay_is_drawn_behind_the_newest_event() -> None:
    """As a line that the legend names; a delay that is learned has none."""
    figure = plot_arrivals(_BEFORE, _AFTER, inversions=(2, 0), delay_ms=10_000)
    (line,) = figure.axes[0].lines
    assert np.asarray(line.get_ydata()).tolist() == [0.0, 2.0, 2.0, 2.0]
    (legend,) = figure.legends
    assert "the delay, 10 s" in " ".join(text.get_text() for text in legend.get_texts())
    learned = plot_arrivals(_BEFORE, _AFTER, inversions=(2, 0), delay_ms=None)
    assert not learned.axes[0].lines
