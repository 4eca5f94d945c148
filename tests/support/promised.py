"""A whole run shows each promise: `--promises` fails one that skipped all tests of a promise."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

_OF_THE_MACHINE: Final = re.compile(
    r"only root|no small disk can be mounted|is not installed; the other tests stand for it"
    r"|the system call's number is unknown|the user 'nobody' can run no Python"
    r"|needs --broker=container|KAFKA_BOOTSTRAP_SERVERS names one"
)
"""Why a test may be skipped: for want of a thing of the machine, or since others run it."""


class Promised:
    """A plugin of pytest's; of several processes that of the first one judges."""

    def __init__(self) -> None:
        self._shown: set[str] = set()
        self._skipped: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: Iterable[pytest.Item]) -> None:
        """Have reports say which promises their tests show, from other processes, too."""
        for item in items:
            for mark in item.iter_markers("promise"):
                item.user_properties += [("promise", name) for name in mark.args]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note which promises were shown."""
        names = [str(name) for kind, name in report.user_properties if kind == "promise"]
        if report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
            if not _OF_THE_MACHINE.search(reason):
                self._skipped |= dict.fromkeys(names, reason)
        elif report.when == "call":
            self._shown |= set(names)

    def unshown(self) -> dict[str, str]:
        """Return promises of which all tests were skipped, and why."""
        return {name: why for name, why in self._skipped.items() if name not in self._shown}

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run that would pass, and shows less than is promised."""
        if self.unshown() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name them."""
        for name, why in sorted(self.unshown().items()):
            terminalreporter.write_line(f"promise {name}: all of its tests were skipped: {why}")
