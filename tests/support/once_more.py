"""Tests that run once more elsewhere, with the fixtures that are found there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from _pytest.fixtures import FixtureFunctionDefinition

if TYPE_CHECKING:
    from types import ModuleType


def once_more(module: ModuleType) -> dict[str, Any]:
    """Return the tests of a module, and the fixtures of its own, by their names."""
    return {
        name: one
        for name, one in vars(module).items()
        if name.startswith("test_") or isinstance(one, FixtureFunctionDefinition)
    }
