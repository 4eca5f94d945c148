"""Which tests go to one process.

pytest-xdist's `loadgroup` tells groups by a suffix of a test's id, which pytest 9.2 no longer lets
it add (pytest-xdist#1386): here the processes write the groups down for the one that schedules.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any, Final

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

IN_SESSION: Final = "in a session of Spark: "
"""What the names of groups begin with that need one."""
_SESSIONS: Final = 2
SESSION_FOLDER: Final = "TEST_SESSION_FOLDER"
"""Names what all processes share; a SEQUITUR_ that the product does not know would be refused."""


def write_groups(groups: dict[str, str]) -> None:
    """Each process finds the same."""
    aside = _file().with_suffix(f".{os.getpid()}")
    aside.write_text(json.dumps(groups))
    aside.replace(_file())


def _file() -> Path:
    return Path(os.environ[SESSION_FOLDER], "groups.json")


class Groups(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a process a group of tests, the largest first, or one test of none.

    Two processes have Spark's session, begin with what needs it, and go on with that until there is
    none left: neither waits for the other.
    """

    def _split_scope(self, nodeid: str) -> str:
        return self._groups.get(nodeid, nodeid)

    def _reschedule(self, node: Any) -> None:
        if not node.shutting_down and self.workqueue and self._next(node) is None:
            node.shutdown()
            return
        super()._reschedule(node)

    def _assign_work_unit(self, node: Any) -> None:
        if (scope := self._next(node)) is not None:
            self.workqueue.move_to_end(scope, last=False)
            super()._assign_work_unit(node)

    def _next(self, node: Any) -> str | None:
        """Return the group that a process is given next; None where all that is left is others'."""
        sessions = [
            one
            for one, groups in self.assigned_work.items()
            if any(group.startswith(IN_SESSION) for group in groups)
        ]
        may_have_one = node in sessions or len(sessions) < _SESSIONS
        waiting = {group.startswith(IN_SESSION): group for group in reversed(self.workqueue)}
        return waiting.get(may_have_one) or waiting.get(False)

    @functools.cached_property
    def _groups(self) -> dict[str, str]:
        """Read once all have collected."""
        groups: dict[str, str] = json.loads(_file().read_text())
        return groups
