"""The description of an SQL database, which can be had without connecting to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sequitur.base.extras import load
from sequitur.consumer.topology.state.store import StateSession, StateStore, Writer
from sequitur.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sequitur.consumer.topology.state.store import State
    from sequitur.consumer.topology.transactional.attempt import TransactionAttempt

_DRIVERS: Final = ("sqlite", "sqlite+pysqlite", "postgresql+psycopg")
_USE: Final = "a state in a database"
_SECRETS: Final = ("password", "sslpassword")


@dataclass(frozen=True, slots=True)
class SQLStore(StateStore):
    """A database of SQLite or PostgreSQL. Needs the extra `sequitur-kafka[state]`.

    ::

        store = SQLStore("sqlite:////var/lib/counts.db")
        count = TransactionalState(store, "global_count", key=str, value=int)

    Args:
        url: `sqlite:////var/lib/counts.db`, a file that all tasks reach, on one host, or
            `postgresql+psycopg://user@host/database`, without a password. A relative path is made
            absolute here, since tasks may have another working directory.
        password_env: The environment variable with the password, on the driver and on every
            executor.

    Raises:
        StateError: SQLAlchemy or the driver is not installed, or the address makes no sense.
    """

    url: str = field(repr=False)
    password_env: str | None = None

    def __post_init__(self) -> None:
        parsed = self._parsed()
        # Only now may a message show it.
        if parsed.password is not None or any(name in parsed.query for name in _SECRETS):
            raise StateError(
                f"the address of {self.title} holds a password: leave it out, put it into an "
                "environment variable, and name that by password_env"
            )
        if parsed.drivername not in _DRIVERS:
            hint = (
                "write postgresql+psycopg://"
                if parsed.get_backend_name() == "postgresql"
                else "take sqlite:/// or postgresql+psycopg://"
            )
            raise StateError(f"states are not kept in {parsed.drivername!r}: {hint}")
        if self.is_sqlite and (parsed.database or ":memory:") == ":memory:":
            raise StateError(
                "a database in memory ends with its process: name a file, sqlite:////path/of.db"
            )
        if self.is_sqlite and (self.password_env or parsed.query):
            raise StateError(
                f"{self.title} takes neither a password nor options: leave them out of the address"
            )
        self._check_driver()
        if self.is_sqlite:
            file = parsed.set(database=str(Path(parsed.database).absolute()))
            object.__setattr__(self, "url", file.render_as_string())

    def __repr__(self) -> str:
        """Show no more than the title, which has no password."""
        return f"SQLStore({self.title!r})"

    @property
    def title(self) -> str:
        """The address without options."""
        shown: str = self._parsed().set(password=None, query={}).render_as_string()
        return shown

    @property
    def is_of_one_host(self) -> bool:
        return self.is_sqlite

    @property
    def is_sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    def create(
        self,
        owners: Mapping[str, Sequence[State]],
        topology: str,
        epoch: str,
        least_attempt: int = 0,
    ) -> None:
        """Create missing tables and register their owners.

        Raises:
            StateError: As `StateStore.create` says, or a state is of another store.
            StateOwnerError: As `StateStore.create` says.
            StateUnavailableError: The database does not serve just now.
        """
        from sequitur.consumer.topology.state.sql.schema import create_schema  # noqa: PLC0415

        for states in owners.values():
            for state in states:
                if state.store != self:
                    raise StateError(
                        f"state {state.name!r} is of {state.store.title}, and not of {self.title}: "
                        "create it there"
                    )
        create_schema(self, owners, topology, epoch, least_attempt)

    def give_up(self, topology: str, epoch: str, last: TransactionAttempt) -> bool:
        """See `StateStore.give_up`.

        Raises:
            StateError: As `StateStore.give_up` says.
        """
        from sequitur.consumer.topology.state.sql.schema import give_up  # noqa: PLC0415

        return give_up(self, topology, epoch, last)

    def session(self, writer: Writer) -> StateSession:
        from sequitur.consumer.topology.state.sql.session import SQLSession  # noqa: PLC0415

        return SQLSession(self, writer)

    def _parsed(self) -> Any:
        sqlalchemy = load("sqlalchemy", _USE, error=StateError)
        try:
            return sqlalchemy.make_url(self.url)
        except (sqlalchemy.exc.ArgumentError, ValueError):
            # Its text would show a password that stands in the wrong place.
            raise StateError(
                "the address of a state's database is not understood: write sqlite:////path/of.db "
                "or postgresql+psycopg://user@host/database"
            ) from None

    def _check_driver(self) -> None:
        if not self.is_sqlite:
            load("psycopg", _USE, error=StateError)
