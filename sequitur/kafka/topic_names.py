"""Which names a topic may have: Kafka's rule (its `Topic.validate`)."""

from __future__ import annotations

import re
from typing import Final

EXPECTED: Final = "expected a topic name: letters, digits, '.', '_' and '-', at most 249"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def is_topic_name(name: str) -> bool:
    """Return whether a cluster could have a topic of this name."""
    return _NAME.fullmatch(name) is not None and name not in {".", ".."}


def check_topic_name(name: object) -> None:
    """Refuse what no topic is called."""
    if not isinstance(name, str):
        raise TypeError(f"topic is {type(name).__name__}, expected str")
    if not is_topic_name(name):
        raise ValueError(f"topic {name!r}: {EXPECTED}")
