"""What Spark itself has written down of an application: its event log."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pathlib import Path


def logged_to(folder: Path) -> dict[str, str]:
    """Return Spark's settings of an application whose events go to a folder."""
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }


@dataclass(frozen=True, slots=True)
class SparkEventLog:
    """The events of an application, in their order."""

    events: list[dict[str, Any]]

    @classmethod
    def of(cls, folder: Path, application: str) -> Self:
        """Read those of an application, by its id; it may not have ended, or logged any yet."""
        file = next(folder.glob(f"{application}*"), None)
        if file is None:
            return cls([])
        # The newest may not be written to its end.
        whole, _, _ = file.read_bytes().rpartition(b"\n")
        return cls([json.loads(line) for line in whole.splitlines()])

    @property
    def masters(self) -> set[str]:
        """What `spark.sparkContext.master` was; one, or none of a log that has not begun."""
        return {one["Spark Properties"]["spark.master"] for one in self._of("EnvironmentUpdate")}

    @property
    def executors(self) -> list[str]:
        return [one["Executor ID"] for one in self._of("ExecutorAdded")]

    @property
    def removed(self) -> dict[str, str]:
        return {one["Executor ID"]: one["Removed Reason"] for one in self._of("ExecutorRemoved")}

    def tasks(self, *, are_copies: bool = False) -> list[str]:
        """Return by which executors tasks were done, or speculative copies of tasks."""
        return [
            one["Task Info"]["Executor ID"]
            for one in self._of("TaskEnd")
            if one["Task End Reason"]["Reason"] == "Success"
            and one["Task Info"]["Speculative"] == are_copies
        ]

    def _of(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in self.events if one["Event"] == f"SparkListener{kind}"]
