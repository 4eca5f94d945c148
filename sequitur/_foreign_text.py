"""Keys, values and headers that others wrote, as JSON and on a terminal."""

from __future__ import annotations

import base64

from rich.text import Text


def plain(raw: bytes | None) -> str | dict[str, str] | None:
    """Return bytes as a plain value: as text, or in base64 where they are none."""
    if raw is None:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


def shown(value: str | dict[str, str] | None) -> Text:
    """Return others' text as it is, without markup or a terminal's control sequences."""
    if value is None:
        return Text("-")
    text = " ".join(*value.items()) if isinstance(value, dict) else value
    return Text(
        "".join(one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in text)
    )
