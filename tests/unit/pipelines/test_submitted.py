"""The locale that a JVM is given, and what of its driver's arguments is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.waiting import PATIENCE_S

_PROGRAM = """if True:
    from sequitur.pipelines.submitted import check_arguments, java_locale
    check_arguments()  # nobody has submitted this program
    print(java_locale())
"""


@pytest.mark.promise("cli-locale")
@pytest.mark.parametrize("variable", ["LC_ALL", "LC_CTYPE"])
@pytest.mark.parametrize("name", ["C", "POSIX", "no_such_locale", "C.UTF-8"])
def test_a_jvm_is_given_a_locale_where_there_is_none(variable: str, name: str) -> None:
    """Python has UTF-8 all the same; a JVM has not. A locale of UTF-8 stays as it is."""
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM, "wh??t"],
        env={variable: name, "PYTHONCOERCECLOCALE": "0"},
        capture_output=True, text=True, timeout=PATIENCE_S, check=True,
    )  # fmt: skip
    assert run.stdout == ("{}\n" if name == "C.UTF-8" else "{'LC_ALL': 'C.UTF-8'}\n")
