"""How long a test waits is `PATIENCE_S`, and no number of its own."""

from __future__ import annotations

import ast

from tests.support.tree import ROOT

_WAITS = {"result", "flush", "join", "wait", "wait_for", "timeout", "settimeout"}
_SHORT_S = 1
"""So long nothing is waited for: it is a poll, or a time that is the subject."""


def _is_literal(wait: ast.Call) -> bool:
    """Whether it is one, and its time-out is a number."""
    name = ast.unparse(wait.func)
    if name.startswith("tester."):
        return False  # what passes is the tester's own clock
    last = wait.args[-1:] if name.rpartition(".")[2] in _WAITS and "mark." not in name else []
    times = [*last, *(one.value for one in wait.keywords if one.arg in {"timeout", "timeout_s"})]
    values = [one.value for one in times if isinstance(one, ast.Constant)]
    return any(isinstance(value, int | float) and value > _SHORT_S for value in values)


def test_no_wait_has_a_time_of_its_own() -> None:
    for path in (ROOT / "tests").rglob("*.py"):
        calls = [one for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.Call)]
        found = [ast.unparse(one) for one in calls if _is_literal(one)]
        assert found == [] or path.parent.name == "house", path
