"""Keys that were taken out: their rows stay without a value until the next transaction of the task.

By them a repeat finds what was there before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import bindparam, insert, select

from sequitur.consumer.topology.state.sql.dialects import PAGE_KEYS, Dialect, pages
from sequitur.consumer.topology.state.sql.schema import REMOVED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sqlalchemy import Connection

    from sequitur.consumer.topology.state.kinds import State
    from sequitur.consumer.topology.state.values import Key

_TEXT: Final[Mapping[type, Callable[[Any], str]]] = {str: str, int: str, bytes: bytes.hex}
_KEY: Final[Mapping[type, Callable[[str], Any]]] = {str: str, int: int, bytes: bytes.fromhex}
_OF_TASK: Final = (
    (REMOVED.c.topology == bindparam("topology"))
    & (REMOVED.c.component == bindparam("component"))
    & (REMOVED.c.task == bindparam("task"))
)


def note_removed(
    connection: Connection, given: Mapping[str, Any], state: State, page: Iterable[tuple[Key, Any]]
) -> None:
    """Note which keys of a page a task has taken out."""
    own = {name: given[name] for name in ("topology", "component", "task")}
    text = _TEXT[state.key]
    rows = [{**own, "name": state.name, "key": text(key)} for key, value in page if value is None]
    if rows:
        connection.execute(insert(REMOVED), rows)


def delete_removed(
    connection: Connection, dialect: Dialect, given: Mapping[str, Any], states: Sequence[State]
) -> None:
    """Delete the rows of what a task has taken out in its transaction before."""
    for state in states:
        noted = _OF_TASK & (REMOVED.c.name == state.name)
        texts = set(connection.scalars(select(REMOVED.c.key).where(noted), given))
        keys = sorted(map(_KEY[state.key], texts))
        for page in pages(((key, None) for key in keys), PAGE_KEYS):
            dialect.delete(connection, state, [key for key, _ in page], given["txid"])
        connection.execute(REMOVED.delete().where(noted), given)
