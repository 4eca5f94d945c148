"""What modules load and are called. `make check` says which package may import which."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.support.tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path

_PACKAGES = ("producer", "consumer", "pipelines")
"""Folders of the tree, imported as `sequitur.producer` and so on."""
_FOLDERS = (*_PACKAGES, "sequitur", "tests", "benchmarks", "examples")


def _imported_packages(source: Path) -> set[str]:
    return {name.removeprefix("sequitur.").partition(".")[0] for name in _imported_modules(source)}


@cache
def _imported_modules(source: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
    return names


def test_a_package_has_one_name() -> None:
    """Two names would be two modules, whose classes are not each other's."""
    for source in sorted(found for folder in _FOLDERS for found in (ROOT / folder).rglob("*.py")):
        roots = {name.partition(".")[0] for name in _imported_modules(source)}
        assert not roots & set(_PACKAGES), source


@pytest.mark.parametrize("package", ["producer", "consumer"])
def test_producer_and_consumer_need_no_spark(package: str) -> None:
    """The state machines and the daemon run where there is no Spark."""
    for source in sorted((ROOT / package).rglob("*.py")):
        assert "pyspark" not in _imported_packages(source), source.name


def test_the_tester_loads_neither_spark_nor_arrow() -> None:
    """A test of a topology begins at once, and runs where there are none."""
    heavy = "'pyspark', 'py4j', 'pyarrow', 'sequitur.pipelines'"
    assert _loaded_of(heavy, "sequitur.consumer.topology") == "[]"


@pytest.mark.parametrize(
    ("heavy", "module"),
    [
        ("'numpy', 'pydantic', 'sequitur.consumer', 'sequitur.kafka'", "sequitur.cli.main"),
        ("'pyspark', 'pyarrow', 'pandas'", "sequitur.cli.dlq, sequitur.cli.jobs"),
        ("'pyspark', 'pyarrow', 'pandas'", "sequitur.cli.measure, sequitur.cli.tail"),
        ("'pyspark', 'pyarrow', 'pandas'", "sequitur, sequitur.errors"),
        ("'pandas'", "sequitur.pipelines.reorder, sequitur.pipelines.process"),
        ("'numpy', 'aiohttp', 'psutil'", "sequitur.producer.sources._registry"),
    ],
)
def test_programs_load_what_they_need(heavy: str, module: str) -> None:
    """Each start would take up to half a second more; a command that needs it loads it."""
    assert _loaded_of(heavy, module) == "[]"


def _loaded_of(heavy: str, module: str) -> str:
    asked = f"import sys, {module}; print(sorted({{{heavy}}} & {{*sys.modules}}))"
    told = subprocess.run(
        [sys.executable, "-c", asked], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return told.stdout.strip()


def test_no_registry_host_stands_in_the_tree() -> None:
    """Packages are named, not the hosts they come from: a mirror or a proxy must do as well."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    host = re.compile(
        r"repo1?\.maven|maven\.org|pypi\.org|pythonhosted|deb\.debian|registry-1|docker\.io/|ghcr"
    )
    names = [name for name in tracked.stdout.split("\0") if name and name != "LICENSE"]
    assert names
    found = [
        name
        for name in names
        if name != "tests/unit/project/test_layout.py"
        and (ROOT / name).is_file()
        and host.search((ROOT / name).read_text(errors="replace"))
    ]
    assert found == []
