from __future__ import annotations

import sys
import tomllib

import pytest

from sequitur.base.extras import EXTRAS, how_to_install, load
from sequitur.base.program import sentence
from sequitur.errors import CheckpointError, MissingExtraError
from tests.support.tree import ROOT


def test_who_lacks_a_package_is_told_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    told = r"a table needs the package pyarrow: pip install 'sequitur\[arrow\]'"
    with pytest.raises(MissingExtraError, match=told):
        load("pyarrow", "a table")
    with pytest.raises(CheckpointError, match=told):
        load("pyarrow", "a table", error=CheckpointError)


def test_what_no_extra_brings_is_as_python_has_it() -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_module'"):
        load("no_such_module", "a table")


def test_a_command_that_meets_a_missing_package_says_it_in_a_sentence() -> None:
    missing = ModuleNotFoundError("No module named 'py4j'", name="py4j.protocol")
    told = "this needs the package py4j: pip install 'sequitur[spark]'"
    assert sentence(missing, errors=()) == how_to_install(missing) == told


def test_each_extra_that_is_named_is_there_and_in_all() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"])
    (everything,) = project["optional-dependencies"]["all"]
    assert set(EXTRAS.values()) == extras - {"all"}
    assert set(everything.removeprefix("sequitur[").removesuffix("]").split(",")) == extras - {
        "all"
    }
