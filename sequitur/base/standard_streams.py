"""Descriptors 0 to 2 of a program: what starts the program may have closed them.

A system gives the next file that is opened the lowest free descriptor. A journal or a dead-letter
file that becomes descriptor 0 would be read as standard input, and what the program or its
children print would be written into one that becomes descriptor 1 or 2.
"""

from __future__ import annotations

import os
import sys


def reserve_descriptors() -> None:
    """Open each of the descriptors 0 to 2 that is closed, before the program opens any file.

    What is written to it vanishes. It cannot be read: no input is an error and not an empty input.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_WRONLY)
            assert opened == descriptor, "a lower descriptor was free"
            os.set_inheritable(descriptor, True)  # children would have the same trouble
    # Python has no object for a stream that was closed when it started.
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False, encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False, encoding="utf-8", errors="replace")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False, encoding="utf-8", errors="replace")  # noqa: SIM115
