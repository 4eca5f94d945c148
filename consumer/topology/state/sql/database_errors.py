"""Our own errors for a database's: whether another try may help, and who has to act."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import DBAPIError

from sequitur.consumer.topology.state.fence import OTHER_DATABASE
from sequitur.errors import StateError, StateOwnerError, StateUnavailableError, StateValueError

if TYPE_CHECKING:
    from collections.abc import Iterator


_TRY_AGAIN: Final = "the batch is worth another try"
# PostgreSQL: classes of SQLSTATE, and single ones. Appendix A of its manual.
_UNAVAILABLE_CLASSES: Final = ("08", "53", "57", "58", "40")
_UNAVAILABLE: Final = ("55P03", "25P03", "25P04", "25006")
_VALUE_CLASSES: Final = ("22", "54")
_NO_TABLE: Final = ("42P01", "42703", "3F000")
# What a server says for good when a client comes; everything else may pass.
_REFUSED: Final = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|does not exist|"
    r"permission denied|not permitted to log in|certificate"
)
_SQLITE_UNAVAILABLE: Final = (
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR),
    *(sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_PROTOCOL),
)


@contextlib.contextmanager
def naming_failures(title: str) -> Iterator[None]:
    """Raise the database's errors as our own."""
    try:
        yield
    except DBAPIError as error:
        raise meaning(error, title) from error
    except UnicodeEncodeError as error:  # of the connection's encoding
        raise StateValueError(f"{title} does not take it: {error}") from error


def meaning(error: DBAPIError, title: str) -> StateError:
    """Return our own error for a database's."""
    said = " ".join(str(error.orig).split())
    if isinstance(error.orig, sqlite3.Error):
        kind = _of_sqlite(error.orig, said)
    else:
        kind = _of_postgresql(error, said)
    advice = {
        StateUnavailableError: _TRY_AGAIN,
        StateValueError: "keep smaller or other values",
        StateOwnerError: f"the database was lost, or is another one. To continue, {OTHER_DATABASE}",
    }.get(kind, "mend what it names")
    return kind(f"{title} says: {said}; {advice}")


def _of_sqlite(error: sqlite3.Error, said: str) -> type[StateError]:
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    if primary in _SQLITE_UNAVAILABLE:
        return StateUnavailableError
    if primary == sqlite3.SQLITE_TOOBIG or isinstance(error, sqlite3.DataError):
        return StateValueError
    if said.startswith(("no such table", "no such column")):
        return StateOwnerError
    return StateError


def _of_postgresql(error: DBAPIError, said: str) -> type[StateError]:
    code = getattr(error.orig, "sqlstate", None)
    if code is None:
        if error.connection_invalidated or not _REFUSED.search(said):
            return StateUnavailableError
        return StateError
    if code[:2] in _UNAVAILABLE_CLASSES or code in _UNAVAILABLE:
        return StateUnavailableError
    if code[:2] in _VALUE_CLASSES:
        return StateValueError
    return StateOwnerError if code in _NO_TABLE else StateError
