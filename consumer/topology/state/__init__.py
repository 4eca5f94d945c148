"""State of transactional topologies: what committer bolts keep in a database, exactly once.

`store` has the kinds of state, the rule that fences old tries, and what is asked of a database;
`map_state` has what a bolt and the engine hold; `sql` is for SQL databases.
"""

from sequitur.consumer.topology.state.map_state import MapState
from sequitur.consumer.topology.state.sql.store import SQLStore
from sequitur.consumer.topology.state.store import (
    NonTransactionalState,
    OpaqueState,
    State,
    StateStore,
    TransactionalState,
)

__all__ = [
    "MapState",
    "NonTransactionalState",
    "OpaqueState",
    "SQLStore",
    "State",
    "StateStore",
    "TransactionalState",
]
