"""The samples of the pages on topologies run; the tutorial prints what the page shows."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from sequitur import TopologyBuilder, TopologyTester
from sequitur.pipelines.topology.topology_file import load_topology
from tests.support.pages import run, samples, section
from tests.support.tree import EXAMPLES, ROOT

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_tutorial_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, first, failure, _ = samples("topologies.md")
    (tmp_path / "words.py").write_text(words)
    monkeypatch.setitem(sys.modules, "words", sys)  # so that it is gone after the test
    monkeypatch.delitem(sys.modules, "words")
    load_topology(tmp_path / "words.py")
    run("try_words", first, failure)
    tutorial = section("topologies.md", "Write a first topology")
    shown = re.findall(r"```\n\n```\n(.*?)^```$", tutorial, re.DOTALL | re.MULTILINE)
    assert len(shown) == 2
    assert capsys.readouterr().out == "".join(shown)


def test_the_windows_of_the_page_close_at_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    bolt = run(__name__, samples("topologies.md")[3])["Windows"]
    monkeypatch.setattr(sys.modules[__name__], "Windows", bolt, raising=False)  # for its pickle
    builder = TopologyBuilder("windows")
    builder.set_spout("events")
    builder.set_bolt("windows", bolt(), tick_interval="10 s").local_grouping("events")
    builder.set_output("counts", key="begin_ms", value="count").local_grouping("windows")
    tester = TopologyTester(builder.build())
    tester.run([("a", b"", 1_000), ("a", b"", 59_000), ("a", b"", 61_000)], watermark_ms=61_000)
    assert tester.records("counts") == []
    tester.advance(10)
    tester.run()
    assert tester.records("counts") == [(b"0", b"2")]
    tester.close()


def test_the_tester_of_the_page_on_transactions_counts_a_word(tmp_path: Path) -> None:
    load_topology(EXAMPLES / "transactional_words.py")
    sample = samples("transactions.md")[0]
    assert "sqlite:////tmp/" in sample
    run("words_on_a_list", sample.replace("/tmp/", f"{tmp_path}/"))


def test_the_samples_of_the_second_page_run() -> None:
    text = (ROOT / "docs" / "inside" / "reliability.md").read_text()
    several = samples("inside/reliability.md")
    assert len(several) == text.count("```python") == 2
    for sample in several:
        run("reliability_page", sample)
