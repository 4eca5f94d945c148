"""A program that runs `sequitur`, until something happens to it at a document of its checkpoint.

`python mishaps.py kill spark/offsets/1 reorder ...` ends by SIGKILL before it writes that document,
and with `stop` it is stopped there (SIGSTOP), until somebody lets it go on.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Final

from sequitur.cli.main import main
from sequitur.pipelines.store.storage import LocalStorage

MISHAPS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_create = LocalStorage.create


def _hit(number: signal.Signals, document: str) -> None:
    is_due = [True]

    def create(self: LocalStorage, name: str, text: str) -> bool:
        if name.startswith(document) and is_due:
            is_due.clear()
            os.kill(os.getpid(), number)
        return _create(self, name, text)

    LocalStorage.create = create  # type: ignore[method-assign]


if __name__ == "__main__":
    _, mishap, place, *words = sys.argv
    _hit(MISHAPS[mishap], place)
    sys.argv[1:] = words
    main()
