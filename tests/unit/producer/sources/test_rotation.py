"""Older generations are told by their names, and ordered by age."""

from __future__ import annotations

import pytest

from sequitur.producer.sources._rotation import Generation, Rotation


def _generation(name: str, modified_ns: int = 0, inode: int | None = None) -> Generation:
    return Generation(name, 1, hash(name) if inode is None else inode, modified_ns)


@pytest.mark.parametrize(
    "name",
    ["app.log.1", "app.log.12", "app.log-20261120", "app.log.2026-11-20_10", "app-2026-11-20.log"],
)
def test_rotated_names_are_known(name: str) -> None:
    """Numbers and dates, behind the name or before its suffix."""
    assert Rotation("app.log").is_rotated(name)


@pytest.mark.parametrize(
    "name",
    ["app.log", "app.log.gz", "app.log.1.gz", "app.log.bak", "app.logs.1", "other.log.1", "app.1"],
)
def test_other_names_are_not(name: str) -> None:
    """A neighbour is not read by mistake, nor a compressed file."""
    assert not Rotation("app.log").is_rotated(name)


def test_age_is_the_last_write() -> None:
    """Whatever the names say."""
    young, old = _generation("app.log.2", 20), _generation("app.log.1", 10)
    assert Rotation("app.log").in_order([young, old]) == [old, young]


def test_names_decide_within_one_instant() -> None:
    """A higher number is older, a lower date is older."""
    names = ["app.log.10", "app.log.2", "app.log.1"]
    dates = ["app.log-20261119", "app.log-20261120", "app.log-20261120.1"]
    rotation = Rotation("app.log")
    for expected in (names, dates):
        generations = [_generation(name) for name in reversed(expected)]
        assert [found.name for found in rotation.in_order(generations)] == expected


def test_the_younger_are_those_rotated_after() -> None:
    """Not the file itself, none older, none that is no generation."""
    current = _generation("app.log.2", 20)
    others = [
        current,
        _generation("app.log.3", 10),
        _generation("app.log.1", 30),
        _generation("app.log.bak", 40),
        _generation("app.log", 50),
    ]
    assert [found.name for found in Rotation("app.log").younger(current, others)] == ["app.log.1"]
