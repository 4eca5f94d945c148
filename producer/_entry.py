"""The start of `produce-events`: descriptors and Ctrl-C, before anything is loaded or opened."""

from __future__ import annotations

import signal

from sequitur.base.standard_streams import reserve_descriptors


def produce_events() -> None:
    quietly()
    from sequitur.producer.daemon.cli import main  # noqa: PLC0415

    as_python_does()
    main()


def quietly() -> None:
    """Let Ctrl-C end the process silently, unless it is ignored; reserve descriptors 0 to 2."""
    reserve_descriptors()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def as_python_does() -> None:
    """Let Ctrl-C raise an exception again, so that files, children and connections are closed."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
