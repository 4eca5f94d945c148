"""Files of bolts' snapshots, from one step to the next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from sequitur.pipelines.store.files import sync

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sequitur.pipelines.store.files import Location


def write_states(
    folder: Location,
    states: Mapping[tuple[str, int], bytes],
    kept: Mapping[tuple[str, int], Location],
) -> dict[tuple[str, int], Location]:
    """Write what bolts want kept; what they kept before and has not changed is not written again.

    Args:
        folder: Where it is written.
        states: It, pickled, by component and task.
        kept: Files of what they kept before.

    Returns:
        The files.
    """
    paths = {}
    for place, state in states.items():
        path = folder / f"{uuid4().hex}.pickle"
        if not (place in kept and _is_linked(kept[place], path, state)):
            path.write_bytes(state)
        sync(path)
        paths[place] = path
    return paths


def _is_linked(kept: Location, path: Location, state: bytes) -> bool:
    """Hard-link the file if it has this content; return whether that was done."""
    if not isinstance(kept, Path) or not isinstance(path, Path):
        return False  # an object store has no links
    if kept.stat().st_size != len(state) or kept.read_bytes() != state:
        return False
    try:
        path.hardlink_to(kept)
    except OSError:
        return False
    return True
