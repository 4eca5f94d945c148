"""The topology of docs/coming-from-storm.md runs, and each name that the page promises is there."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

from sequitur import ProcessSettings, ReorderSettings, TopologyBuilder, TopologyTester
from sequitur.pipelines.topology.topology_file import load_topology
from tests.support.pages import samples
from tests.support.tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def test_the_topology_of_the_page_counts_words(tmp_path: Path) -> None:
    (sample,) = samples("coming-from-storm.md")
    path = tmp_path / "words_from_storm.py"
    path.write_text(sample)
    tester = TopologyTester(load_topology(path))
    tester.run([("page 1", "to be or not to be")])
    tester.run([("page 2", "be")])
    counts = [count for word, count in tester.records("counts") if word == b"be"]
    assert counts == [b"1", b"2", b"3"]
    tester.close()


def test_each_setting_of_the_page_is_there() -> None:
    page = (ROOT / "docs" / "coming-from-storm.md").read_text()
    table = page.partition("## Which setting is which?")[2].strip().splitlines()[2:]
    named = {name for row in table for name in re.findall(r"`([a-z_]+)`", row.split(" | ")[1])}
    settings = {*ReorderSettings.model_fields, *ProcessSettings.model_fields}
    arguments = {*inspect.signature(TopologyBuilder.set_bolt).parameters, "set_bolt"}
    assert {"call_timeout", "tick_interval", "parallelism"} <= named
    assert named <= settings | arguments
