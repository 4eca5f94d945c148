"""A program that is started with some of descriptors 0 to 2 closed opens no file there."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from typing import TYPE_CHECKING

import pytest

from tests.support.tree import ROOT
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

_CLOSED = [closed for closed in product((False, True), repeat=3) if any(closed)]
# What the program loads first tells what it finds, and ends it.
_TOLD = """
import json, os, sys, types
told = sys.argv[1]


def tell(*_):
    with open(told, "w") as file:
        print("printed", flush=True)
        print("complained", file=sys.stderr)
        json.dump([file.fileno(), [os.get_inheritable(one) for one in range(3)]], file)
    os._exit(0)


class Tells:
    def find_spec(self, name, path=None, target=None):
        if name in {first}:
            tell()


sys.meta_path.insert(0, Tells())
"""
_PROGRAMS = {
    "produce-events": (
        "sequitur.producer.daemon",
        "from sequitur._entry import produce_events; produce_events()",
    ),
    "sequitur": ("sequitur.cli", "from sequitur._entry import sequitur; sequitur()"),
    "reorder job": (
        "sequitur.pipelines.python_path",
        "import runpy; runpy.run_module('sequitur.pipelines.reorder', run_name='__main__')",
    ),
    "process job": (
        "sequitur.pipelines.python_path",
        "import runpy; runpy.run_module('sequitur.pipelines.process', run_name='__main__')",
    ),
}


def _run(code: str, closed: tuple[bool, ...], told: Path) -> subprocess.CompletedProcess[bytes]:
    redirected = [f"{number}>&-" for number, is_closed in enumerate(closed) if is_closed]
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {" ".join(redirected)}', "sh", sys.executable, "-c", code, told],
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=PATIENCE_S,
        input=b"",
    )


@pytest.mark.promise("in-descriptors-closed")
@pytest.mark.parametrize("program", _PROGRAMS)
def test_a_program_reserves_them_before_it_loads_anything(program: str, tmp_path: Path) -> None:
    """All three, so that no file of its own is standard input, output or error."""
    first, start = _PROGRAMS[program]
    told = tmp_path / "told"
    run = _run(_TOLD.replace("{first}", repr({first})) + start, (True, True, True), told)
    assert run.returncode == 0
    descriptor, inheritable = json.loads(told.read_text())
    assert descriptor > 2
    assert inheritable == [True, True, True]


@pytest.mark.promise("in-descriptors-closed")
@pytest.mark.parametrize("closed", _CLOSED, ids=str)
def test_whichever_are_closed_the_others_stay_what_they_are(
    closed: tuple[bool, ...], tmp_path: Path
) -> None:
    told = tmp_path / "told"
    start = (
        "from sequitur.base.standard_streams import reserve_descriptors\n"
        "reserve_descriptors()\ntell()"
    )
    run = _run(_TOLD.replace("{first}", "()") + start, closed, told)
    assert run.returncode == 0
    assert json.loads(told.read_text())[0] > 2
    assert run.stdout == (b"" if closed[1] else b"printed\n")
    assert run.stderr == (b"" if closed[2] else b"complained\n")


@pytest.mark.promise("in-descriptors-closed")
def test_what_is_reserved_cannot_be_read(tmp_path: Path) -> None:
    """No input is not taken for an empty input."""
    start = (
        "from sequitur.base.standard_streams import reserve_descriptors\n"
        "reserve_descriptors()\n"
        "from sequitur.errors import SourceError\n"
        "from sequitur.producer.sources._registry import SourceSettings, check_source\n"
        "try:\n    check_source(SourceSettings(source='stdin'))\n"
        "except SourceError as error:\n    open(sys.argv[1], 'w').write(str(error))\n"
    )
    told = tmp_path / "told"
    assert _run("import sys\n" + start, (True, False, False), told).returncode == 0
    assert told.read_text().startswith("standard input cannot be read, it is closed")
