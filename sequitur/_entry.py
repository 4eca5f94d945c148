"""Where the console scripts begin: before anything is loaded, so that Ctrl-C is quiet even then."""

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
    """Let Ctrl-C end the process without a word; who ignores it goes on to ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _as_python_does() -> None:
    """Let Ctrl-C be an exception again: files, children and connections are closed on its way."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
