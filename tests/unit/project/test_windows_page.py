"""The samples of the page on windows run, and print what the page shows."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest

from sequitur import KeyedBolt, TopologyTester
from sequitur.pipelines.topology.topology_file import load_topology
from tests.support.pages import run, samples, section

if TYPE_CHECKING:
    from pathlib import Path


def test_the_first_window_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage, tried = samples("windows.md")[:2]
    (tmp_path / "usage.py").write_text(usage)
    monkeypatch.setitem(sys.modules, "usage", sys)  # so that it is gone after the test
    monkeypatch.delitem(sys.modules, "usage")
    load_topology(tmp_path / "usage.py")
    run("try_usage", tried)
    shown = re.findall(
        r"^```\n(\[.*?)^```$", section("windows.md", "Compute a mean of each minute"),
        re.DOTALL | re.MULTILINE,
    )  # fmt: skip
    assert [capsys.readouterr().out] == shown


def test_the_line_of_the_page_computes_the_same(tmp_path: Path) -> None:
    (tmp_path / "line.py").write_text(samples("windows.md")[2])
    tester = TopologyTester(load_topology(tmp_path / "line.py"))
    tester.run([("web-1", {"usage": 0.5}, 1_000), ("web-1", {"usage": 0.7}, 59_000)])
    tester.run([("web-1", {"usage": 0.9}, 61_000)])
    tester.run([("web-1", {"usage": 0.1}, 2_000)])
    ((key, value),) = tester.records("results")
    assert (key, value) == (b"web-1", b'{"begin_ms":0,"end_ms":60000,"mean":0.6,"count":2}')
    assert len(tester.records("late")) == 1


def test_the_aggregate_of_the_page_computes_a_spread() -> None:
    spread = run(__name__, samples("windows.md")[3])["Spread"]()
    assert spread.of_all([4, 1, 3]) == 3
    assert spread.of_all([]) is None
    left, right = spread.add(None, 1), spread.add(spread.add(None, 5), 9)
    assert spread.result(spread.merge(left, right)) == 8
    assert spread.merge(left, None) == left


def test_the_join_of_the_page_joins_orders_and_payments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "paid.py").write_text(samples("windows.md")[7])
    monkeypatch.setitem(sys.modules, "paid", sys)  # so that it is gone after the test
    monkeypatch.delitem(sys.modules, "paid")
    tester = TopologyTester(load_topology(tmp_path / "paid.py"))
    tester.run([("1", {"kind": "order"}, 0), ("2", {"kind": "order"}, 0)])
    tester.run([("1", {"kind": "payment"}, 300_000)], watermark_ms=300_001)
    assert tester.records("out") == [(b"1", b'{"kind":"payment"}'), (b"2", None)]


@pytest.mark.parametrize(("at", "name"), [(4, "first"), (5, "silent"), (6, "limited")])
def test_the_others_are_made(at: int, name: str) -> None:
    assert isinstance(run("windows_page", samples("windows.md")[at])[name], KeyedBolt)
