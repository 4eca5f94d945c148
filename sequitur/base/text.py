r"""Text about events and errors, as it is kept, sent and printed.

Such text often quotes what somebody else wrote, and a Python string holds more than UTF-8 does:
half a surrogate pair, as programs write it that cut texts by their length (`"half \ud83d"` in
JSON), or a byte of a file's name. Text is made encodable where it becomes text about an event. From
there on every file, header and log takes it.
"""

from __future__ import annotations


def encodable(text: str) -> str:
    r"""Return text in UTF-8's range: half a surrogate pair becomes its escape, `\ud83d`."""
    return str.encode(text, errors="backslashreplace").decode()


def said_by(error: BaseException) -> str:
    """Return an exception's text, or a substitute if it fails to give one."""
    try:
        return encodable(str(error))
    except Exception:  # noqa: BLE001 - its class may be anybody's
        return "<its text cannot be shown>"


def named(error: BaseException) -> str:
    return f"{encodable(type(error).__name__)}: {said_by(error)}"


def renamed(former: str, today: str) -> str:
    return f"`{former}` is called `{today}` now. The former name works until 0.1.0 is released"
