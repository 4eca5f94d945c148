"""Stored forms that no release had, as clones before 0.1.0 wrote them. They are refused."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

_REFUSED = Path(__file__).parents[1] / "golden" / "refused"


def golden_document(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((_REFUSED / name).read_text())
    return found


def golden_text(name: str) -> str:
    return (_REFUSED / name).read_text()


def golden_records(topic: str) -> dict[bytes, bytes]:
    """Return what fb84216 has stored in a topic of subscriptions: of one, `billing`.

    It is on partition 0 of `orders`, of which it has acked 0 to 2 and 5 to 8.
    """
    return {
        key.encode(): value.encode() for key, value in golden_document("subscription.json")[topic]
    }


def make_golden_states(database: Path) -> None:
    """Make a database of schema version 1, with a transaction that is committed in part."""
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript((_REFUSED / "states.sql").read_text())


def make_golden_journal(directory: Path) -> None:
    """Make a journal of format 2, with events of producer `me` that wait."""
    shutil.copytree(_REFUSED / "journal", directory)
