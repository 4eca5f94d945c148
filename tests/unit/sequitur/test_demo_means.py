"""The demo compares each mean with that of pandas, and says what is wrong."""

from __future__ import annotations

import pytest

from sequitur.cli.demo import MeansReport, MinuteMean, means_of

_ROWS = [
    {"key": "a", "usage": 0.1, "occurred_at": 59_999},
    {"key": "a", "usage": 0.2, "occurred_at": 60_000},
    {"key": "a", "usage": 0.4, "occurred_at": 119_999},
    {"key": "b", "usage": 7.0, "occurred_at": 60_000},
]
_MEANS = [
    MinuteMean("a", 0, 0.1, 1),
    MinuteMean("a", 60_000, 0.3, 2),
    MinuteMean("b", 60_000, 7.0, 1),
]


@pytest.mark.promise("cli-make-demo-fresh")
def test_pandas_computes_the_mean_of_each_minute() -> None:
    assert MeansReport(_MEANS, means_of(_ROWS)).problems == ()
    assert [(one.key, one.begin_ms, one.count) for one in means_of(_ROWS)] == [
        (one.key, one.begin_ms, one.count) for one in _MEANS
    ]


@pytest.mark.promise("cli-make-demo-fresh")
@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ([*_MEANS, _MEANS[0]], "1 means put out again"),
        (_MEANS[1:], "1 means missing"),
        ([*_MEANS, MinuteMean("c", 0, 1.0, 1)], "1 means too many"),
        ([MinuteMean("a", 0, 0.1 * (1 + 1e-9), 1), *_MEANS[1:]], "1 means are not those of pandas"),
        ([MinuteMean("a", 0, 0.1, 2), *_MEANS[1:]], "1 means are not those of pandas"),
    ],
)
def test_what_is_wrong_with_means_is_said(found: list[MinuteMean], problem: str) -> None:
    assert MeansReport(found, _MEANS).problems == (problem,)
