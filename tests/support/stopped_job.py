"""A program that runs `sequitur`, and is stopped before it writes a document of its checkpoint.

`python stopped_job.py spark/offsets/1 reorder ...` sends itself SIGSTOP there, once; whoever wakes
it lets it write the document.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from sequitur.cli.main import main
from sequitur.pipelines.store.storage import LocalStorage

_create = LocalStorage.create


def _stop_before(document: str) -> None:
    is_due = [True]

    def create(self: LocalStorage, name: str, *how: Any, **named: Any) -> bool:
        if name == document and is_due:
            is_due.clear()
            os.kill(os.getpid(), signal.SIGSTOP)
        return _create(self, name, *how, **named)

    LocalStorage.create = create  # type: ignore[method-assign]


if __name__ == "__main__":
    _stop_before(sys.argv.pop(1))
    main()
