"""State of transactional topologies: what committer bolts keep in a database, exactly once.

- `store` has the kinds of state, and what the engine asks of a database.
- `map_state` has what a bolt and the engine hold of a state in one batch.
- `fence`, `rows` and `values` have the rules: which writer, which row, which key and value.
- `sql` keeps states in SQL databases.
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
