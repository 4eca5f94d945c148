"""The start of the console scripts: handles Ctrl-C before anything is loaded."""

from __future__ import annotations

import signal


def sequitur() -> None:
    """`sequitur`."""
    _quietly()
    from sequitur.cli import main  # noqa: PLC0415 - takes a second or two

    _as_python_does()
    main()


def produce_events() -> None:
    """`produce-events`."""
    _quietly()
    from sequitur.producer.daemon.cli import main  # noqa: PLC0415

    _as_python_does()
    main()


def _quietly() -> None:
    """Let Ctrl-C end the process silently, unless it is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _as_python_does() -> None:
    """Let Ctrl-C raise an exception again, so that files, children and connections are closed."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
