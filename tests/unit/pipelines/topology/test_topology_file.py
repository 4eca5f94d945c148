"""A user's file with a topology: what it has to be."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from sequitur.consumer.topology import ProcessSettings, TransactionalTopologyBuilder
from sequitur.consumer.topology.state import SQLStore, TransactionalState
from sequitur.errors import TopologyFileError
from sequitur.pipelines.topology.topology_file import check_stores, load_topology
from tests.support.transactions import Gather, Journal
from tests.support.tree import EXAMPLES

if TYPE_CHECKING:
    from pathlib import Path

_FILES = {
    "no_such_file.py": (None, "no such file"),
    "not-a-name.py": ("", "not that of a Python module"),
    "broken_topology_file.py": ("1 / 0", "ZeroDivisionError"),
    "empty_topology_file.py": ("", "has no topology"),
    "other_topology_file.py": ("topology = 3", "has no topology"),
    "json.py": ("", "a module named 'json' exists already"),
    "colorsys.py": ("", "a module named 'colorsys' exists already"),
}


@pytest.mark.promise("process-topology-invalid-file")
@pytest.mark.parametrize("name", _FILES)
def test_file_without_a_topology_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, said = _FILES[name]
    # Of Python's own modules, json is loaded, and this one may be by another test.
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(TopologyFileError, match=said) as refused:
        load_topology(path)
    assert name in str(refused.value)


@pytest.mark.promise("process-modules-beside")
def test_modules_beside_a_topology_hide_none_of_another_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not Python's own, and not what is installed; modules of other names are found."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("colorsys", "tabnanny", "sortedcontainers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('the {name} beside')")
    text = """
import colorsys, sortedcontainers, tabnanny
import shapes_beside_it
from sequitur.consumer.topology import TopologyBuilder
builder = TopologyBuilder(shapes_beside_it.NAME)
builder.set_spout("events")
builder.set_output("out").local_grouping("events")
topology = builder.build()
"""
    (tmp_path / "shapes_beside_it.py").write_text("NAME = 'beside'")
    (tmp_path / "moto.py").write_text(text)  # as a package that is installed, and not loaded
    monkeypatch.delitem(sys.modules, "moto", raising=False)
    assert load_topology(tmp_path / "moto.py").name == "beside"
    del sys.modules["moto"], sys.modules["shapes_beside_it"]


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_examples_have_topologies(name: str) -> None:
    assert load_topology(EXAMPLES / name).outputs


@pytest.mark.parametrize("database", ["sqlite:////var/lib/n.db", "postgresql+psycopg://u@h/db"])
def test_file_of_one_host_is_refused_on_a_cluster(database: str) -> None:
    """Unless it is said that all run on that host; a database that all reach is taken."""
    states = {"counts": TransactionalState(SQLStore(database), "counts")}
    builder = TransactionalTopologyBuilder("kept", "spout")
    builder.set_bolt("sum", Gather(Journal(), ["counts"]), states=states).global_grouping("spout")
    topology, settings = builder.build(), ProcessSettings()
    check_stores(settings, topology, "local[2,4]")
    check_stores(ProcessSettings(sqlite_on_one_host=True), topology, "spark://h:7077")
    if not database.startswith("sqlite"):
        check_stores(settings, topology, "spark://h:7077")
        return
    said = r"'counts' of .* 'kept' is in sqlite.*n\.db, .* spark://h:7077: .*\.sqlite_on_one_host"
    with pytest.raises(TopologyFileError, match=said):
        check_stores(settings, topology, "spark://h:7077")
