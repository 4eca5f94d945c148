from __future__ import annotations

import sys
import tomllib
from typing import TYPE_CHECKING

import pytest
import typer

from sequitur.base.extras import DISTRIBUTION, EXTRAS, how_to_install, load
from sequitur.base.program import run_program, sentence
from sequitur.errors import CheckpointError, MissingExtraError
from tests.support.tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def test_who_lacks_a_package_is_told_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    told = r"a table needs the package pyarrow: pip install 'sequitur-kafka\[arrow\]'"
    with pytest.raises(MissingExtraError, match=told):
        load("pyarrow", "a table")
    with pytest.raises(CheckpointError, match=told):
        load("pyarrow", "a table", error=CheckpointError)


def test_what_no_extra_brings_is_as_python_has_it() -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_module'"):
        load("no_such_module", "a table")


def test_a_command_that_meets_a_missing_package_says_it_in_a_sentence() -> None:
    missing = ModuleNotFoundError("No module named 'py4j'", name="py4j.protocol")
    told = "this needs the package py4j: pip install 'sequitur-kafka[spark]'"
    assert sentence(missing, errors=()) == how_to_install(missing) == told


def test_each_extra_that_is_named_is_there_and_in_all() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"])
    (everything,) = project["optional-dependencies"]["all"]
    assert set(EXTRAS.values()) == extras - {"all"}
    name, _, named = everything.removesuffix("]").partition("[")
    assert name == project["name"] == DISTRIBUTION
    assert set(named.split(",")) == extras - {"all"}


def _put_beside(
    monkeypatch: pytest.MonkeyPatch, folder: Path, version: str, entry_points: str | None
) -> None:
    """Have a package `sequitur` in the environment, by what pip notes of it."""
    noted = folder / f"sequitur-{version}.dist-info"
    noted.mkdir()
    (noted / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sequitur\nVersion: {version}\n")
    if entry_points is not None:
        (noted / "entry_points.txt").write_text(entry_points)
    monkeypatch.syspath_prepend(folder)


def _start(monkeypatch: pytest.MonkeyPatch, done: list[str]) -> object:
    """Start a program that notes what it did; return its status."""
    app = typer.Typer()

    @app.command()
    def work() -> None:
        done.append("work")

    monkeypatch.setattr(sys, "argv", ["program"])
    with pytest.raises(SystemExit) as ended:
        run_program("program", app, errors=())
    return ended.value.code


@pytest.mark.promise("cli-namesake")
@pytest.mark.parametrize("entry_points", [None, "[console_scripts]\ntrain = sequitur.train:main\n"])
def test_no_program_starts_beside_another_projects_sequitur(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    entry_points: str | None,
) -> None:
    done: list[str] = []
    _put_beside(monkeypatch, tmp_path, "1.2.4", entry_points)
    assert (_start(monkeypatch, done), done) == (3, [])
    told = capsys.readouterr().err
    assert told.startswith("program: the package sequitur 1.2.4 in this environment is another")
    assert "`pip uninstall sequitur`" in told


@pytest.mark.promise("cli-namesake")
def test_our_own_package_under_its_former_name_stops_no_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done: list[str] = []
    ours = "[console_scripts]\nsequitur = sequitur._entry:sequitur\n"
    _put_beside(monkeypatch, tmp_path, "0.1.0", ours)
    assert (_start(monkeypatch, done), done) == (None, ["work"])
