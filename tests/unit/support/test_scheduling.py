"""Two processes have what needs Spark's session, and no other waits for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.scheduling import IN_SESSION, SESSION_FOLDER, Groups, write_groups

if TYPE_CHECKING:
    from pathlib import Path

_SIZES = {f"{IN_SESSION}{name}": size for name, size in {"a": 9, "b": 5, "c": 4, "d": 3}.items()}
_GROUPS = {f"{name} {n}": name for name, size in _SIZES.items() for n in range(size)}
_BROKER = {f"broker {n}": "own broker" for n in range(30)}
_TESTS = [*_BROKER, *_GROUPS, *(f"test {n}" for n in range(6))]


class _Node:
    """A process, which runs a test as soon as it knows which one is the next, or that none is."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.ran: list[str] = []
        self.shutting_down = False
        self.gateway = SimpleNamespace(id="gw")

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv(SESSION_FOLDER, str(tmp_path))
    monkeypatch.setattr("xdist.scheduler.loadscope.parse_tx_spec_config", lambda _: range(5))
    write_groups({**_GROUPS, **_BROKER})
    return Groups(SimpleNamespace(option=SimpleNamespace(loadscopereorder=True)))


@pytest.mark.parametrize(("slow", "shares"), [(1, [12, 9]), (7, [9, 12])], ids=["alike", "slow"])
def test_all_tests_run_and_those_in_a_session_in_two_processes(
    scheduler: Any, slow: int, shares: list[int]
) -> None:
    """Of these a process gets the next file once it is through with the one before."""
    nodes = [_Node() for _ in range(5)]
    for node in nodes:
        scheduler.add_node(node)
        scheduler.add_node_collection(node, _TESTS)
    scheduler.schedule()
    for turn in range(1000):
        for number, node in enumerate(nodes):
            if (number == 0 and turn % slow) or len(node.given) <= (not node.shutting_down):
                continue
            index = node.given.pop(0)
            node.ran.append(_TESTS[index])
            scheduler.mark_test_complete(node, index)
    assert scheduler.tests_finished
    assert sorted(test for node in nodes for test in node.ran) == sorted(_TESTS)
    in_session = [sum(test in _GROUPS for test in node.ran) for node in nodes]
    assert in_session == [*shares, 0, 0, 0]
    assert sum(any(test in _BROKER for test in node.ran) for node in nodes) == 1
    assert all(test in _GROUPS for test in nodes[1].ran[: in_session[1]])
