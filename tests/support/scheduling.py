"""Which tests go to one process.

pytest-xdist's `loadgroup` tells groups by a suffix of a test's id, which pytest 9.2 no longer lets
it add (pytest-xdist#1386): here the processes write the groups down for the one that schedules.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Final

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

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
    """Gives a process a group of tests, the largest first, or one test of none."""

    def _split_scope(self, nodeid: str) -> str:
        return self._groups.get(nodeid, nodeid)

    @functools.cached_property
    def _groups(self) -> dict[str, str]:
        """Read once all have collected."""
        groups: dict[str, str] = json.loads(_file().read_text())
        return groups
