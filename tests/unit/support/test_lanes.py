"""Each test file is in a lane, and each pattern of a lane has a file."""

from __future__ import annotations

from fnmatch import fnmatch

from tests.support.lanes import LANES, lane_of
from tests.support.tree import ROOT

_TESTS = ROOT / "tests"
_FILES = [file.relative_to(_TESTS).as_posix() for file in _TESTS.rglob("test_*.py")]


def test_each_test_file_is_in_a_lane() -> None:
    assert [file for file in _FILES if lane_of(file) is None] == []


def test_each_pattern_of_a_lane_has_a_file() -> None:
    patterns = [one for lane in LANES.values() for one in lane]
    assert [one for one in patterns if not any(fnmatch(file, one) for file in _FILES)] == []
