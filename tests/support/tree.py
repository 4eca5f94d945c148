"""Where the project's files are."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
EXAMPLES: Final = ROOT / "examples"
