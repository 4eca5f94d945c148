"""What became of a step's events, as earlier versions wrote it and as this one does."""

from __future__ import annotations

import json
import pickle
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.base.stored import dump, load
from sequitur.consumer.topology import (
    BaseTransactionalBolt,
    Committer,
    EventValues,
    Place,
    TaskId,
    TransactionalTopologyBuilder,
    TransactionAttempt,
)
from sequitur.consumer.topology.settling.root import Root
from sequitur.consumer.topology.state import OpaqueState, SQLStore, State, TransactionalState
from sequitur.errors import CheckpointError, StateFormatError, TopologyFileError
from sequitur.pipelines.topology.processed import Prepared, Processed, ProcessTotals
from sequitur.pipelines.topology.topology_file import check_prepared
from tests.support.checkpoints import claimed
from tests.support.golden import golden_document
from tests.support.values import replace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sequitur.consumer.topology import TransactionalTopology


@pytest.mark.parametrize(
    ("kind", "room"),
    [
        (Root, "settling.root"),
        (TransactionAttempt, "transactional.attempt"),
        (EventValues, "api.tuple"),
        (Place, "api.tuple"),
        (TaskId, "api.collector"),
    ],
)
def test_what_checkpoints_hold_pickled_keeps_its_name(kind: type, room: str) -> None:
    """Prepared tuples and what bolts keep name these, wherever a version has their code."""
    found = pickle.loads(f"csequitur.consumer.topology.{room}\n{kind.__name__}\n.".encode())
    assert found is kind


@pytest.mark.promise("state-version-changed-step")
@pytest.mark.parametrize(
    ("name", "document", "what"),
    [
        (
            "processed/000000000007",
            golden_document("processed.json"),
            "processed step of format 4, this version reads 5 and 6",
        ),
        (
            "prepared/000000000007-000000001048578",
            golden_document("prepared.json"),
            "prepared step of format 1, this version reads 2",
        ),
    ],
)
def test_what_an_older_version_wrote_is_refused_and_left_as_it_is(
    tmp_path: Path, name: str, document: dict[str, Any], what: str
) -> None:
    """As `inspect` and the job read it."""
    checkpoint = claimed(tmp_path)
    path = tmp_path / name
    path.write_text(json.dumps(document))

    def read() -> None:
        checkpoint.processed(7, partial(load, Processed, root=tmp_path))
        checkpoint.prepared(7, partial(load, Prepared, root=tmp_path))

    with pytest.raises(CheckpointError, match=rf"{path} cannot be read: {what}: let .*--drain"):
        read()
    assert json.loads(path.read_text()) == document
    checkpoint.close()


def test_another_form_is_refused_by_its_number() -> None:
    """A newer one; and what this version writes has a number that earlier ones refuse."""
    document = dump(Processed())
    assert document["format"] == 5
    for other in (3, 4, 7, None):
        with pytest.raises(StateFormatError, match=f"format {other}, this version reads 5 and 6"):
            load(Processed, {**document, "format": other})


@pytest.mark.promise("process-event-unaccounted")
@pytest.mark.parametrize("lost", ["acked", "pending", "made_acked", "made_dead", "made_replayed"])
def test_events_and_what_bolts_made_are_balanced_apart(lost: str) -> None:
    totals = ProcessTotals(
        taken=5, replayed=1, acked=3, dead=1, pending=2,
        made=4, made_replayed=2, made_acked=1, made_dead=2, made_pending=3,
    )  # fmt: skip
    assert totals.are_balanced
    assert totals.waiting == 5
    assert not replace(totals, **{lost: getattr(totals, lost) + 1}).are_balanced


def test_newer_form_is_refused() -> None:
    document = dump(Prepared(7, "f", "b", Processed(), (), {}, {}))
    with pytest.raises(StateFormatError, match="format 99"):
        load(Prepared, {**document, "prepared_format": 99})


class _Part(BaseTransactionalBolt):
    fields: Sequence[str] = ("transaction", "word", "count")


class _Sum(BaseTransactionalBolt, Committer):
    fields = ("transaction", "count")


def _topology(
    store: SQLStore,
    *,
    part: str = "part",
    fields: Sequence[str] = _Part.fields,
    table: str = "counts",
    kind: type[State] = TransactionalState,
) -> TransactionalTopology:
    bolt = _Part()
    bolt.fields = fields
    builder = TransactionalTopologyBuilder("words", "spout")
    builder.set_bolt(part, bolt, 3).shuffle_grouping("spout")
    states = {"count": kind(store, table)}
    builder.set_bolt("sum", _Sum(), 2, states=states).fields_grouping(part, "word")
    return builder.build()


@pytest.mark.promise("state-topology-changed-step")
@pytest.mark.parametrize(
    ("changes", "tasks", "reason"),
    [
        ({}, 3, r"with the tasks of 'sum': 2. Now it is one with the tasks of 'sum': 3"),
        ({"part": "counter"}, 2, "without stream 'default' of 'counter'"),
        (
            {"fields": ("transaction", "count", "word")},
            2,
            r"read by 'sum': transaction, word, count. Now .*: transaction, count, word",
        ),
        ({"fields": ("transaction", "host", "word", "count")}, 2, "transaction, host, word, count"),
        ({"table": "other"}, 2, r"state 'count' of 'sum': counts, .*: other, transactional"),
        ({"kind": OpaqueState}, 2, "counts, opaque, str, int"),
    ],
)
def test_a_changed_topology_is_told_by_what_has_changed(
    tmp_path: Path, changes: Mapping[str, Any], tasks: int, reason: str
) -> None:
    """With the way to go on; the same one goes on, also with another bolt behind the same name."""
    store = SQLStore(f"sqlite:///{tmp_path}/state.db")
    signature = _topology(store).commit_signature
    prepared = Prepared(7, "f", "b", Processed(), (), {"sum": 2}, signature)
    again = load(Prepared, dump(prepared))
    check_prepared("checkpoint", again, _topology(store), {"sum": 2})
    with pytest.raises(TopologyFileError, match=reason) as raised:
        check_prepared("checkpoint", again, _topology(store, **changes), {"sum": tasks})
    assert "until the step is done" in str(raised.value)
