"""State of transactional topologies: what committer bolts keep in a database, exactly once.

`kinds` and `fence` are pure; `map_state` has what a bolt and the engine hold; `store` is
what they ask of a database, and `sql` asks it of SQL databases.
"""

from sequitur.consumer.topology.state.map_state import CommitterStates, MapState
from sequitur.consumer.topology.state.sql.store import SQLStore
from sequitur.consumer.topology.state.store import (
    Change,
    NonTransactionalState,
    OpaqueState,
    State,
    StateKind,
    StateSession,
    StateStore,
    Stored,
    TransactionalState,
    Writer,
)
from sequitur.errors import (
    StateConflictError,
    StateError,
    StateOvertakenError,
    StateOwnerError,
    StateUnavailableError,
    StateValueError,
)

__all__ = [
    "Change",
    "CommitterStates",
    "MapState",
    "NonTransactionalState",
    "OpaqueState",
    "SQLStore",
    "State",
    "StateConflictError",
    "StateError",
    "StateKind",
    "StateOvertakenError",
    "StateOwnerError",
    "StateSession",
    "StateStore",
    "StateUnavailableError",
    "StateValueError",
    "Stored",
    "TransactionalState",
    "Writer",
]
