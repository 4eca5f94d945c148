"""The examples do what they say, on plain lists; and what their texts show is what comes out."""

from __future__ import annotations

import doctest
import sys
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import FailReason, ProcessSettings, TopologyTester
from sequitur.pipelines.topology.topology_file import load_topology
from tests.support.tree import EXAMPLES

if TYPE_CHECKING:
    from sequitur.consumer.topology import Topology

_EXAMPLES = sorted(path.stem for path in EXAMPLES.glob("*.py"))


def _example(name: str) -> Topology:
    return load_topology(EXAMPLES / f"{name}.py")


def _reading(hostname: str, usage: float, time_ms: int) -> tuple[str, Any, int]:
    return hostname, {"hostname": hostname, "cpu": 0, "usage": usage}, time_ms


def _order(number: int) -> tuple[str, Any]:
    return str(number), {"kind": "order", "number": number, "item": "lamp"}


def _payment(number: int) -> tuple[str, Any]:
    return str(number), {"kind": "payment", "number": number, "amount": 35}


def test_there_are_examples() -> None:
    """Else the tests of all of them would hold of none."""
    assert _EXAMPLES == [
        "cpu_alert",
        "join",
        "keyed_count",
        "keyed_dedup",
        "keyed_silence",
        "transactional_global_count",
        "transactional_words",
        "window_join",
        "window_mean",
        "window_sessions",
        "wordcount",
    ]


@pytest.mark.parametrize("name", _EXAMPLES)
def test_the_text_of_an_example_holds(name: str) -> None:
    """It says how to run it, and what it shows is what comes out."""
    _example(name)
    module = sys.modules[name]
    text = module.__doc__ or ""
    assert f"sequitur process examples/{name}.py --config job.toml" in text
    parsed = doctest.DocTestParser().get_doctest(text, vars(module).copy(), name, None, 0)
    result = doctest.DocTestRunner().run(parsed)
    assert result.attempted > 2
    assert result.failed == 0


def test_wordcount_counts_over_batches() -> None:
    tester = TopologyTester(_example("wordcount"))
    tester.run([("a", "to be or not to be", 1)])
    tester.run([("a", "Be", 2)])
    counts = tester.records("counts")
    assert [count for word, count in counts if word == b"be"] == [b"1", b"2", b"3"]
    assert dict(counts) == {b"to": b"2", b"be": b"3", b"or": b"1", b"not": b"1"}
    assert len(tester.acked) == 2


def test_cpu_alert_tells_of_busy_windows_of_each_host() -> None:
    """Above the threshold, not at it; whatever the order of arrival."""
    tester = TopologyTester(_example("cpu_alert"))
    tester.run(
        [
            _reading("busy", 100.0, 25_000),
            _reading("busy", 90.0, 9_999),
            _reading("busy", 80.0, 1_000),
            _reading("calm", 80.0, 2_000),
            _reading("busy", 10.0, 10_000),
            _reading("calm", 80.0, 12_000),
        ]
    )
    assert tester.records("alerts") == [(b"busy", b'{"begin_ms":0,"average":85.0}')]
    assert len(tester.acked) == 6


def test_cpu_alert_keeps_its_windows_over_batches() -> None:
    tester = TopologyTester(_example("cpu_alert"))
    tester.run([_reading("busy", 70.0, 1_000)])
    tester.run([_reading("busy", 100.0, 2_000)])
    assert tester.records("alerts") == []
    tester.run([_reading("busy", 0.0, 30_000)])
    assert tester.records("alerts") == [(b"busy", b'{"begin_ms":0,"average":85.0}')]


def test_cpu_alert_leaves_closed_windows_as_they_are() -> None:
    """A reading of a window that is over counts neither there nor in the next one."""
    tester = TopologyTester(_example("cpu_alert"))
    tester.run([_reading("busy", 90.0, 1_000), _reading("busy", 90.0, 11_000)])
    tester.run([_reading("busy", 0.0, 2_000), _reading("busy", 0.0, 21_000)])
    assert [value for _, value in tester.records("alerts")] == [
        b'{"begin_ms":0,"average":90.0}',
        b'{"begin_ms":10000,"average":90.0}',
    ]
    assert len(tester.acked) == 4


def test_cpu_alert_dead_letters_what_it_cannot_read() -> None:
    """With the traceback; the host's other readings go on."""
    tester = TopologyTester(_example("cpu_alert"), ProcessSettings(max_attempts=2))
    tester.run([("busy", "{", 1_000), _reading("busy", 99.0, 2_000), _reading("busy", 0, 10_000)])
    tester.retry_all()
    assert [letter.reason for letter in tester.dead_letters] == [FailReason.EXCEPTION]
    assert "JSONDecodeError" in tester.dead_letters[0].detail
    assert tester.records("alerts") == [(b"busy", b'{"begin_ms":0,"average":99.0}')]


def test_join_anchors_to_both_sides() -> None:
    """The joined tuple stands in both trees; both are acked, and the output is there once."""
    tester = TopologyTester(_example("join"))
    tester.run([_order(7), _order(8), _payment(8), _payment(7)])
    assert sorted(tester.records("paid")) == [
        (b"7", b'{"item":"lamp","amount":35}'),
        (b"8", b'{"item":"lamp","amount":35}'),
    ]
    assert len(tester.acked) == 4


def test_join_waits_for_the_other_side() -> None:
    """An order holds its key, so that its payment runs with it once it is tried again."""
    tester = TopologyTester(_example("join"))
    tester.run([_order(7), _order(8), _payment(8)])
    tester.run([_payment(7)])
    assert [len(tester.failed), len(tester.held)] == [1, 1]
    tester.retry_all()
    assert len(tester.records("paid")) == 2
    assert (len(tester.acked), tester.dead_letters) == (4, [])


def test_join_gives_up_what_stays_alone() -> None:
    tester = TopologyTester(_example("join"), ProcessSettings(max_attempts=3))
    tester.run([_order(7)])
    tester.retry_all()
    letter = tester.dead_letters[0]
    assert (letter.reason, letter.attempts) == (FailReason.FAILED, 3)
    assert (letter.detail, letter.path) == (
        "the other side is not there",
        ("events", "parse", "join"),
    )
