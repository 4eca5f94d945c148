"""compose.yaml as Docker would read it: anchors merged, variables filled in."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import yaml  # type: ignore[import-untyped]  # its stubs are no dependency of ours

from sequitur.pipelines.jars import read_lock
from tests.support.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

COMPOSE_FILE: Final = ROOT / "compose" / "compose.yaml"
_VARIABLE: Final = re.compile(r"\$\{(\w+):-([^}]*)\}")


def read_compose_file(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the file's content; each variable is its value in the environment, or its default."""
    text = COMPOSE_FILE.read_text("utf-8")
    filled = _VARIABLE.sub(lambda found: environ.get(found[1]) or found[2], text)
    content: dict[str, Any] = yaml.safe_load(filled)
    return content


def default_image() -> str:
    """Return Apache's image of the broker's version that the lock has."""
    (version,) = [jar.revision for jar in read_lock("broker") if jar.name == "kafka_2.13"]
    return f"apache/kafka:{version}"
