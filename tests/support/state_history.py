"""Random lives of a committer's tasks on a real database, beside a plain dict.

Keys are updated and taken out. Batches are repeated, tasks end before and after their commit, and
old lives of them commit late.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from sequitur.consumer.topology.state import (
    NonTransactionalState,
    OpaqueState,
    State,
    TransactionalState,
)
from sequitur.errors import StateOvertakenError, StateUnavailableError
from tests.support.state_databases import create, opened, writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.consumer.topology.state import StateStore
    from sequitur.consumer.topology.state.map_state import CommitterStates

_KEYS = "abcdef"
_KINDS = ("same", "opaque", "plain")
_TASKS_MAX = 3
_REMOVE = "-"
Batch = list[tuple[str, str]]
Plain = list[tuple[str, str | None]]

_batches = st.lists(st.tuples(st.sampled_from(_KEYS), st.sampled_from(f"123{_REMOVE}")), max_size=8)
# What becomes of a task: it commits; ends before; after, and nobody learns of it; lives on unseen.
_fates = st.lists(
    st.sampled_from(["commits", "commits", "ends before", "ends after", "lives on"]),
    min_size=_TASKS_MAX,
    max_size=_TASKS_MAX,
)


def _after(before: str | None, word: str) -> str | None:
    """Return something that depends on all that was there, and on its order."""
    return None if word == _REMOVE else f"{before or ''}{word}"[-40:]


def _appending(word: str) -> Callable[[Any, Any], str | None]:
    return lambda _key, before: _after(before, word)


class StateHistory(RuleBasedStateMachine):
    """What a database holds is what a dict holds that was given each transaction once.

    Args:
        store: The database.
        number: Gives the names of tables that no example had before.
    """

    def __init__(self, store: StateStore, number: int) -> None:
        super().__init__()
        self.topology = f"topology-{number}"
        self.states: dict[str, State] = {
            "same": TransactionalState(store, f"same_{number}", value=str),
            "opaque": OpaqueState(store, f"opaque_{number}", value=str),
            "plain": NonTransactionalState(store, f"plain_{number}", value=str),
        }
        create(*self.states.values(), topology=self.topology)
        self.expected: dict[str, dict[str, str | None]] = {kind: {} for kind in _KINDS}
        self.tasks = 1
        self.txid, self.attempt = 1, 0
        self.batch: Batch | None = None  # the transactional one's, once it was drawn
        self.zombies: list[tuple[int, int, int, CommitterStates, Plain]] = []
        self.newest: dict[int, tuple[int, int]] = {}  # by task: what it has committed

    @initialize(tasks=st.integers(1, _TASKS_MAX))
    def begin(self, tasks: int) -> None:
        self.tasks = tasks

    @rule(batch=_batches, opaque=_batches, fates=_fates, tasks=st.integers(1, _TASKS_MAX))
    def attempt_batch(self, batch: Batch, opaque: Batch, fates: list[str], tasks: int) -> None:
        """All tasks try; if all are known to have committed, the next transaction begins."""
        self.batch = batch if self.batch is None else self.batch
        is_done = True
        for task in range(self.tasks):
            parts = {"same": self.batch, "opaque": opaque, "plain": self.batch}
            own = {kind: self._of_task(parts[kind], task) for kind in _KINDS}
            states = opened(self._writer(task), *self.states.values())
            plain = self._update(states, own)
            fate = fates[task]
            is_done &= fate == "commits"
            if fate in {"commits", "ends after"}:
                states.commit()
                self._committed(self.txid, self.attempt, task, plain)
            if fate == "lives on":
                self.zombies.append((self.txid, self.attempt, task, states, plain))
            else:
                states.close()
        self.attempt += 1
        if is_done:
            self._apply(self.batch, "same")
            self._apply(opaque, "opaque")
            self.txid, self.attempt, self.batch, self.tasks = self.txid + 1, 0, None, tasks
            self._compare()

    @precondition(lambda self: self.zombies)
    @rule(data=st.data())
    def commit_late(self, data: st.DataObject) -> None:
        """An old life commits: it is refused if its successor has committed."""
        which = data.draw(st.integers(0, len(self.zombies) - 1))
        txid, attempt, task, states, plain = self.zombies.pop(which)
        if (txid, attempt) < self.newest.get(task, (0, 0)):
            try:
                states.commit()
            except StateOvertakenError:
                pass
            else:
                raise AssertionError("an old life has committed after its successor")
        else:
            try:
                states.commit()
            except StateUnavailableError:
                # An earlier attempt has committed behind its back: it is to be repeated.
                assert self.newest[task][0] == txid
            else:
                self._committed(txid, attempt, task, plain)
        states.close()
        if self.attempt == 0:
            self._compare()

    def teardown(self) -> None:
        """Everything done once more, by tasks that live: so each history is compared."""
        fates = ["commits"] * _TASKS_MAX
        self.attempt_batch(batch=[], opaque=[], fates=fates, tasks=1)
        for *_, states, _ in self.zombies:
            states.close()

    def _writer(self, task: int) -> Any:
        return writer(self.txid, self.attempt, task=task, topology=self.topology)

    def _of_task(self, batch: Batch, task: int) -> Batch:
        return [(key, word) for key, word in batch if _KEYS.index(key) % self.tasks == task]

    def _update(self, states: CommitterStates, own: dict[str, Batch]) -> Plain:
        """Update word by word; what the first two kinds return is what one attempt alone would."""
        plain: dict[str, str | None] = {}
        for kind in _KINDS:
            given = states.state(self.states[kind].name)
            model = dict(self.expected[kind])
            last = dict(model)
            for key, word in own[kind]:
                last[key] = _after(last.get(key), word)
            for key, word in own[kind]:
                if word == _REMOVE:
                    given.multi_remove([key])
                    model[key] = None
                    if kind == "plain":
                        plain[key] = None
                    continue
                pair = given.update(key, _appending(word))
                if kind == "plain":
                    plain[key] = pair[1]
                else:
                    computed = (model.get(key), _after(model.get(key), word))
                    stored = (self.expected[kind].get(key), last[key])
                    assert pair == computed or (kind == "same" and pair == stored)
                    model[key] = computed[1]
        return list(plain.items())

    def _committed(self, txid: int, attempt: int, task: int, plain: Plain) -> None:
        self.newest[task] = (txid, attempt)
        self.expected["plain"].update(plain)

    def _apply(self, batch: Batch, kind: str) -> None:
        for key, word in batch:
            self.expected[kind][key] = _after(self.expected[kind].get(key), word)

    def _compare(self) -> None:
        states = opened(self._writer(0), *self.states.values())
        found: dict[str, dict[str, str]] = defaultdict(dict)
        for kind in _KINDS:
            given = states.state(self.states[kind].name).multi_get(_KEYS)
            found[kind] = {
                key: value for key, value in zip(_KEYS, given, strict=True) if value is not None
            }
        states.close()
        expected = {
            kind: {key: value for key, value in rows.items() if value is not None}
            for kind, rows in self.expected.items()
        }
        assert expected == found
