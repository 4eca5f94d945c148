from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.house.pictures import FOLDER, pictures
from tests.house.promises import ALONE, LEFT_OUT, Promise, Shown, marks, page, problems
from tests.support.promised import Promised
from tests.support.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

_KEPT = Promise(section="Order", condition="rows | late", promise="kept", price="none")
_MODULE = """
@pytest.mark.kill
@pytest.mark.promise("a", "b")
def test_one(): ...

class TestThree:
    @pytest.mark.promise("b")
    async def test_two(self): ...

TestMachine = pytest.mark.promise("c")(Machine.TestCase)
"""
_ALL_KILL = "pytestmark = [pytest.mark.spark, pytest.mark.kill]\n"
_OUTSIDE = next(iter(ALONE))


def test_marks_are_read_without_importing() -> None:
    assert sorted(marks(ast.parse(_MODULE))) == [
        Shown("a", "test_one", in_make_test=False),
        Shown("b", "test_one", in_make_test=False),
        Shown("b", "test_two", in_make_test=True),
        Shown("c", "TestMachine", in_make_test=True),
    ]
    assert {one.in_make_test for one in marks(ast.parse(_ALL_KILL + _MODULE))} == {False}


def test_a_promise_without_a_test_and_a_mark_without_a_promise_are_told() -> None:
    outside = [Shown(name, "test_kills", in_make_test=False) for name in ALONE]
    made = {"kept": _KEPT, **dict.fromkeys(ALONE, _KEPT)}
    shown = Shown("kept", "test_one", in_make_test=True)
    assert problems(made, [shown, *outside]) == []
    assert problems(made, [shown._replace(promise="other"), *outside]) == [
        "kept: no test is marked with it",
        "test_one: no promise other",
    ]
    assert problems(made, [shown._replace(in_make_test=False), *outside]) == [
        "kept: make test does not show it, only test_one"
    ]
    assert problems(made, [shown, *outside, shown._replace(promise=_OUTSIDE)]) == [
        f"{_OUTSIDE}: make test shows it, or nobody promises it: take it out of ALONE"
    ]


def test_make_test_leaves_out_what_the_check_takes_for_left_out() -> None:
    found = re.search(r"-m 'not \((.*)\)'", ROOT.joinpath("Makefile").read_text())
    assert found is not None
    assert set(found[1].split(" or ")) == LEFT_OUT


def test_the_page_has_a_row_for_each_promise() -> None:
    told = page({"kept": _KEPT}, {"kept": ["test_two", "test_one", "test_two"]})
    row = "| `kept` | rows \\| late | kept | none | `test_one`, `test_two` |\n"
    assert told.endswith(row)


def test_the_pictures_are_those_of_today() -> None:
    assert {one.name: one.read_text() for one in FOLDER.glob("*.svg")} == pictures()


class _Report:
    """What the plugin reads of a report."""

    def __init__(self, promise: str, *, skipped: str | None = None) -> None:
        self.user_properties = [("promise", promise)]
        self.skipped = skipped is not None
        self.longrepr = ("file", 1, skipped)
        self.when = "setup" if self.skipped else "call"


def _unshown(*reports: Any) -> dict[str, str]:
    plugin = Promised()
    for report in reports:
        plugin.pytest_runtest_logreport(report)
    return plugin.unshown()


def _runs() -> Iterator[tuple[list[_Report], dict[str, str]]]:
    skipped = _Report("kept", skipped="Skipped: too slow today")
    yield [skipped], {"kept": "Skipped: too slow today"}
    yield [skipped, _Report("other")], {"kept": "Skipped: too slow today"}
    yield [skipped, _Report("kept")], {}
    yield [_Report("kept", skipped="Skipped: only root may mount a small disk")], {}


@pytest.mark.parametrize(("reports", "unshown"), [*_runs()])
def test_a_promise_whose_tests_were_all_skipped_is_told(
    reports: list[_Report], unshown: dict[str, str]
) -> None:
    assert _unshown(*reports) == unshown
