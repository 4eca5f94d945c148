"""The start of the console scripts: descriptors and Ctrl-C, before anything is loaded or opened."""

from __future__ import annotations

from sequitur.producer._entry import as_python_does, produce_events, quietly

__all__ = ["produce_events", "sequitur"]


def sequitur() -> None:
    """`sequitur`."""
    quietly()
    from sequitur.cli.main import main  # noqa: PLC0415 - takes a second or two

    as_python_does()
    main()
