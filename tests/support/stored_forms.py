"""One value of each form that is stored, seeded: names that are not ASCII, extreme numbers.

`python -m tests.support.stored_forms` writes them to `tests/golden/0.1.0/forms.json`: that is done
once for a release. A form that is new is added by hand.
"""

from __future__ import annotations

import base64
import json
import sys
import tempfile
import zlib
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from sequitur.base.process import ProcessIdentity
from sequitur.base.stored import dump, load
from sequitur.consumer.reorder import LatePolicy
from sequitur.consumer.reorder.clock import EventClock, PartitionClock
from sequitur.consumer.reorder.key_state import Fold, KeyState
from sequitur.consumer.reorder.learned_delay import LatenessHistogram, LearnedDelays
from sequitur.consumer.reorder.sorted_run import Run
from sequitur.consumer.reorder.step_log import StagedStep, StepDone, StepEntry, StepKind, Totals
from sequitur.consumer.subscription.claims import Claim
from sequitur.consumer.subscription.codec import StoredCursor, decode_cursor, encode_cursor
from sequitur.consumer.subscription.counted_sizes import CountedSizes
from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity
from sequitur.consumer.subscription.policies import (
    BacklogPolicy,
    BacklogQuota,
    DetectionThresholds,
    Retention,
    TopicPolicies,
)
from sequitur.consumer.subscription.redeliveries import Redeliveries, RedeliverySpan
from sequitur.consumer.subscription.registry import Registry, SubscriptionRecord, SubscriptionType
from sequitur.consumer.subscription.stored_pieces import pieces_of, read_stored
from sequitur.consumer.subscription.stored_records import (
    cursor_key,
    cursor_of_key,
    cursor_value,
    owner_key,
    state_key,
)
from sequitur.consumer.subscription.subscription_state import SubscriptionState
from sequitur.kafka.control import BacklogState, key_of
from sequitur.kafka.identity import Identity
from sequitur.kafka.partition import SourcePartition
from sequitur.kafka.records import encode_event_id, parse_event_id
from sequitur.pipelines.sink.step_plans import SequenceEnds, StepPlan, TopicPlan
from sequitur.pipelines.spark_sink.batch_documents import BatchDone, StagedBatch, StagedFile
from sequitur.pipelines.spark_sink.batch_source import NamedBatch, StreamBatch
from sequitur.pipelines.store.checkpoint import OutputPartitions
from sequitur.pipelines.store.job_identity import FormerJob, JobIdentity, begun_with
from sequitur.pipelines.store.run_files import RunFiles
from sequitur.pipelines.topology.processed import Prepared, Processed, ProcessTotals
from sequitur.producer.journal.frames import (
    PREAMBLE_LENGTH,
    Ack,
    Acks,
    BatchFrame,
    Commit,
    Drop,
    Head,
    Number,
    Numbered,
    PartitionState,
    Renewal,
    Restamp,
    SourcePosition,
    Waiting,
    decode_frame,
    decode_preamble,
    encode_preamble,
    encode_round,
    segment_seed,
)
from sequitur.producer.sources._dead_letter import DeadLetterFile
from sequitur.producer.sources._line_file import FilePosition
from tests.support.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sequitur.producer.journal.frames import Frame

GOLDEN: Final = ROOT / "tests" / "golden" / "0.1.0" / "forms.json"
PROBE: Final = "what zlib makes of the same"
_SEED: Final = 20_261_124
_NAME: Final = 'Bestellungen-Überfluß "注文"\u2028\n'
_LARGEST: Final = (1 << 63) - 1
_TINY: Final = 5e-324
_HUGE: Final = 1.7976931348623157e308
_FOLDER: Final = Path("/checkpoint")


class Form(NamedTuple):
    """A form: how a value of it is written, and what reads it back, if anything does."""

    name: str
    written: Any
    """Bytes, to be equal; or a document, to be equal once it is JSON."""
    value: Any = None
    read: Callable[[Any], Any] | None = None
    is_packed: bool = False
    """Whether its bytes depend on the machine's zlib, too."""


def forms() -> Iterator[Form]:
    """Return all of them, the same each time."""
    random = Random(_SEED)
    yield Form(PROBE, zlib.compress(bytes(range(256)) * 40, 6), is_packed=True)
    yield from _steps(random)
    yield from _sink()
    yield from _topology()
    yield from _folders()
    yield from _subscriptions(random)
    yield from _journal(random)
    yield from _sources()


def as_golden(form: Form) -> dict[str, Any]:
    """Return how a form stands in the golden file."""
    if isinstance(form.written, bytes):
        return {"base64": base64.b64encode(form.written).decode()}
    return {"document": json.loads(json.dumps(form.written))}


def of_golden(found: dict[str, Any]) -> Any:
    """Return the bytes, or the document, that a golden form is."""
    return base64.b64decode(found["base64"]) if "base64" in found else found["document"]


def golden_forms() -> dict[str, dict[str, Any]]:
    """Return each form as version 0.1.0 writes it."""
    found: dict[str, dict[str, Any]] = json.loads(GOLDEN.read_text())
    return found


def _document(name: str, value: Any, root: Path | None = None) -> Form:
    return Form(name, dump(value, root), value, partial(load, type(value), root=root))


def _run(random: Random, step: int, **more: Any) -> Run:
    first, last = sorted(random.randrange(_LARGEST) for _ in range(2))
    return Run(step, random.randrange(1 << 40), first, last, size_bytes=random.randrange(1 << 40),
               name=f"{step:012d}-000007-0", **more)  # fmt: skip


def _steps(random: Random) -> Iterator[Form]:
    one, two = SourcePartition(_NAME, 0), SourcePartition("orders", 2**31 - 1)
    clock = EventClock(
        frontier_ms=random.randrange(1 << 42),
        partitions={
            two: PartitionClock(None, 0, 0, _LARGEST),
            one: PartitionClock(
                _LARGEST, 1, 2, 3, silent_ms=4, silent_end=5, delay_ms=6, was_idle=True,
                idle_at_ms=7, was_overruled=True,
            ),
        },
    )  # fmt: skip
    histogram = LatenessHistogram(
        reached_ms=random.randrange(1 << 42), seen=2, late=1, rows=_HUGE, recent_late=_TINY,
        behind={3: 0.1 + 0.2, 1: 1e-9, 2: random.random()},
    )  # fmt: skip
    learned = LearnedDelays({two: LatenessHistogram(), one: histogram}, late_target=1e-12)
    totals = Totals(9, 5, 1, {_NAME: 1, "no_time": 2}, 3, 2, 1)
    shared: dict[str, Any] = {
        "step": 41,
        "batch_id": _LARGEST,
        "previous_frontier_ms": -1,
        "clock": clock,
        "counts": totals,
        "learned": learned,
        "owner": 7,
        "source": "spark-Überfluß",
        "planned": {two: 5, one: _LARGEST},
        "topics": {_NAME: "AAAAAAAAAAAAAAAAAAAAAA"},
        "lost": {one: (3, 9)},
        "counted": {two: (1, 2), one: (3, 4)},
        "output_partitions": 8,
    }
    run = _run(random, 41, behind=3, max_behind_ms=4)
    bare: dict[str, Any] = {
        "step": 0,
        "batch_id": -1,
        "previous_frontier_ms": -1,
        "clock": EventClock(),
    }
    kinds = iter(StepKind)
    yield _document("staged", StagedStep(kind=next(kinds), run=run, first_behind_ms=12, **shared))
    yield _document("staged, bare", StagedStep(kind=next(kinds), **bare))
    keys = KeyState(17, (Fold(3, 4, 5, 6, "fold", {"part-注文": 4}), Fold(7, 1, 2, _LARGEST)))
    decided: dict[str, Any] = {
        "runs": (_run(random, 40), run),
        "before": totals.plus(totals),
        "logged_ms": 1_700_000_000_000,
        "late_policy": LatePolicy.EMIT,
        "rescued": 2,
        "keys": keys,
        "deduplicated_ms": -5,
        "duplicates": 4,
        "judged": {"part-0": 3},
        "repeats": {_NAME: 1},
        "name": "000000000041-000007-1",
    }
    yield _document("frontier", StepEntry(kind=next(kinds), **shared, **decided))
    more: dict[str, Any] = {"runs": (), "before": Totals(), "logged_ms": 0}
    yield _document("frontier, bare", StepEntry(kind=next(kinds), **bare, **more))
    sent = {"format": 1, "anything": [1, "ü", None]}
    done = StepDone(41, totals, 1e-7, {"taken": 3, "busy_ms": _LARGEST}, 1_700_000_000_001, sent)
    yield _document("done", done)
    yield _document("done, bare", StepDone(0, Totals()))
    yield _document("clock", clock)
    yield _document("learned delays", learned)
    yield _document("key folds", keys)
    yield _document("files of a run", RunFiles(_run(random, 3, files={"ü.parquet": 3}).files))


def _sink() -> Iterator[Form]:
    identity = Identity(_LARGEST, 32_767)
    plan = TopicPlan("0af7651916cd43dd8448eb211c80319c", (0, 2**31 - 1), (5, _LARGEST), 1 << 20)
    topics = {_NAME: plan, "orders": TopicPlan(None, (), (), 1)}
    yield _document("plan", StepPlan(41, "c1üster", identity, topics))
    yield _document("plan, bare", StepPlan(0, None, Identity(0, 0), {}))
    sent = SequenceEnds("c1üster", identity, {_NAME: (None, (0, 7)), "orders": ("ab", ())})
    yield _document("sent", sent)
    files = (StagedFile("ü.parquet", 1 << 40, (((0, 3), (7, 1)), ((1, 2),))),)
    stream = StreamBatch("6f9e", 12, "plan-注文")
    yield _document("sink: staged", StagedBatch(3, stream, 8, "f", files))
    yield _document("sink: staged by name", StagedBatch(0, NamedBatch(_NAME), 1, "f", ()))
    sent_so_far = json.loads(json.dumps(dump(sent)))
    yield _document("sink: done", BatchDone(3, 7, sent_so_far))
    yield _document("sink: done, bare", BatchDone(0, 0, None))


def _topology() -> Iterator[Form]:
    totals = ProcessTotals(*range(1, 17))
    processed = Processed(
        step=4, taken=9, totals=totals, next_due_ms=_LARGEST, requests=("r1.parquet",),
        records={_NAME: (_FOLDER / "topology/a/b",)}, dead=(_FOLDER / "topology/a/ü",),
        unfinished=(_FOLDER / "topology/a/d",), waiting={1: (_FOLDER / "x/y/z",), 0: ()},
        states=((_NAME, 3, _FOLDER / "topology/a/s"),), tasks={_NAME: 4}, time_ms=-1,
        watermark_ms=5, least_waiting_ms=6, transaction_id=_LARGEST, committers={"c": 2},
    )  # fmt: skip
    yield _document("processed", processed, _FOLDER)
    yield _document("processed, bare", Processed(), _FOLDER)
    prepared = Prepared(
        attempt=1 << 60, folder="f", batch=_NAME, processed=processed,
        sent=((_FOLDER / "topology/a/t", {("bolt", 2): [[0, 5]]}),), tasks={"bolt": 3},
        signature={"bolt": ["a", _NAME]},
    )  # fmt: skip
    yield _document("prepared", prepared, _FOLDER)


def _folders() -> Iterator[Form]:
    identity = JobIdentity(("b", _NAME, "a"), None, "json:at:ms", "out", 7, "reorder", "words", 2)
    yield Form("format.json", dump(identity), 7, begun_with)
    yield _document("partitions.json", OutputPartitions(4, 6))
    yield _document("former job", FormerJob(3, _LARGEST, "ü"))
    process = ProcessIdentity("ho\u00dft", 7, "boot ns", 99)
    shown = {"host": "ho\u00dft", "process": 7, "space": "boot ns", "started": 99}
    yield Form("process", shown, process, partial(load, ProcessIdentity))


def _cursor(random: Random) -> Cursor:
    acked = sorted(random.sample(range(1_000, 1 << 40), 90))
    cursor = Cursor(CursorIdentity("billing", "注文", 3), start=40)
    cursor.ack_offsets(np.array(acked, dtype=np.int64), end=1 << 41)
    cursor.ack_offsets(np.array(acked[:3], dtype=np.int64), end=1 << 41)
    cursor.ack_absent(2_000, 3_000, end=1 << 41)
    cursor.ack_lost(3_000, 3_007, end=1 << 41)
    return cursor


def _subscriptions(random: Random) -> Iterator[Form]:
    sizes = CountedSizes(0, (7, _LARGEST), (0, 1 << 60))
    yield Form("sizes", sizes.encode(), sizes, CountedSizes.decode)
    redeliveries = Redeliveries((RedeliverySpan(1_000, 1_009, 3), RedeliverySpan(2_000, 2_001, 99)))
    more: dict[str, Any] = {
        "generation": (1 << 64) - 1, "carried": sizes.encode(), "redeliveries": redeliveries
    }  # fmt: skip
    cursor = _cursor(random)
    identity = cursor.identity
    yield Form(
        "cursor",
        encode_cursor(cursor, **more),
        (*_acked(cursor), *more.values()),
        lambda data: _told(decode_cursor(data, identity)),
        is_packed=True,
    )
    whole = pieces_of(cursor, **more)
    chunked = pieces_of(cursor, **more, limit=200, chunk_bytes=300)
    for name, pieces in (("whole", whole), ("chunks", chunked)):
        yield Form(
            f"pieces of a cursor, {name}",
            {
                "offset": pieces.offset,
                "metadata": pieces.metadata,
                "chunks": [[one.hex() for one in chunk] for chunk in pieces.chunks],
            },
            (*_acked(cursor), *more.values()),
            lambda document: _told(_of_pieces(document, identity)),
            is_packed=True,
        )
    state = SubscriptionState(
        epoch=3, checkpoint="c-ü", step=4, frontier_ms=_LARGEST, transaction=5, transactions="注",
        lives=6, written_ms=7, sent={_NAME: {0: 1, 7: _LARGEST}}, topics={_NAME: "id"}, repeated=8,
    )  # fmt: skip
    written = state.encode(generation=9, group="sequitur-billing")
    yield Form("state of a subscription", written, state, SubscriptionState.decode)
    where = SourcePartition("orders", 12)
    keys = {
        "state": state_key("billing"),
        "owner": owner_key("billing"),
        "cursor": cursor_key("billing", where),
        "backlog": key_of(_NAME),
    }
    for name, key in keys.items():
        yield Form(f"key of a record: {name}", key)
    yield Form("key of a cursor", keys["cursor"], ("billing", where), cursor_of_key)
    yield Form("value of a cursor", cursor_value(40, "metadata"))
    claim = Claim("a" * 32, 5, 15_000, 1_700_000_000_000, ProcessIdentity("ü", 7, None, None))
    yield Form("claim", claim.encode(), claim, partial(Claim.decode, subscription="billing"))
    thresholds = DetectionThresholds(1, 2, 3, _TINY, 0)
    quota = BacklogQuota(1 << 50, None, BacklogPolicy.CONSUMER_BACKLOG_EVICTION)
    policies = TopicPolicies(quota, 1, 0, Retention(time_minutes=-1, size_mb=3), thresholds)
    for part in (BacklogQuota(None, 7), quota, Retention(), thresholds, policies, TopicPolicies()):
        yield _document(f"policies: {part}", part)
    record = SubscriptionRecord(
        "billing", ("注文", "orders"), SubscriptionType.KEY_SHARED, 1, epoch=2, last_connected_ms=3,
        expiration_time_minutes=4, reset_ms=5, partition=6, group="ü", evicted_topic="e",
        max_held_bytes=_LARGEST,
    )  # fmt: skip
    bare = SubscriptionRecord(
        "billing", ("orders",), SubscriptionType.EXCLUSIVE, 1, group="sequitur-billing"
    )
    for name, one in (("", record), (", bare", bare)):
        yield Form(f"subscription{name}", one.encode(), one, SubscriptionRecord.decode)
        yield Form(f"key of a subscription{name}", one.key)
    for topic in (None, _NAME):
        changes = Registry().with_policies(topic, policies)
        ((key, value),) = changes.items()
        yield Form(f"key of policies of {topic!r}", key)
        yield Form(f"policies of {topic!r}", value)
    backlog = BacklogState(
        issued_ms=1, valid_for_ms=30_000, policy="producer_exception", subscription="ü",
        backlog_bytes=_LARGEST, limit_bytes=-1, age_s=_HUGE, limit_s=_TINY,
    )  # fmt: skip
    for name, control in (("", backlog), (", bare", BacklogState(issued_ms=0, valid_for_ms=0))):
        read = partial(BacklogState.decode, _NAME)
        yield Form(f"backlog{name}", control.encode(), control, read)


def _acked(cursor: Cursor) -> tuple[Any, ...]:
    ranges = [one.tolist() for one in cursor.acked_arrays()]
    return cursor.mark_delete, cursor.read_position, cursor.counts, ranges


def _told(stored: StoredCursor) -> tuple[Any, ...]:
    return (*_acked(stored.cursor), stored.generation, stored.carried, stored.redeliveries)


def _of_pieces(document: dict[str, Any], identity: CursorIdentity) -> StoredCursor:
    values = [bytes.fromhex(value) for _, value in document["chunks"]]
    return read_stored(document["metadata"], values, identity, offset=document["offset"])


def _journal(random: Random) -> Iterator[Form]:
    identity, data = Identity(_LARGEST, 32_767), random.randbytes(40)
    position = SourcePosition("datei:ü", b"\0\xff")
    names = ("注文", 2**31 - 1)
    pair = identity.producer_id, identity.epoch
    batch = (*names, *pair, 2**31 - 1)
    frames: tuple[Frame, ...] = (
        Head("ü", 7, identity, 5, (PartitionState(*batch, 4),), (position,), "c1üster"),
        Head("p", 0, None, 0, (), ()),
        Renewal(identity, (Restamp(*batch, 0, 3),), (names,), "c1üster"),
        BatchFrame(*batch, 3, 4, 6, position, _LARGEST, dated=False, data=data),
        Acks((Ack(*batch), Ack(*batch, offset=_LARGEST, reason="zu spät"))),
        Waiting(*names, 4, 6, 3, 1, 2, dated=True, piece=True, data=data),
        Drop(((*names, 4),), "ü"),
        position,
        Numbered((Number(*names, 4, 6, 3, *pair, 0), Number(*names, 7, 7, 1, *pair, 3, 9))),
        Commit(),
    )
    segment = 1 << 40
    seed = segment_seed(segment)
    preamble = encode_preamble(segment)
    yield Form("preamble of a segment", preamble, (3, segment), decode_preamble)
    for frame in frames:
        buffers, _ = encode_round([frame], seed=seed, offset=PREAMBLE_LENGTH, synced=3)
        name = f"frame {type(frame).__name__.removeprefix('Source')}{len(b''.join(buffers))}"
        yield Form(name, b"".join(buffers), [frame], partial(_frames, seed=seed))
    buffers, _ = encode_round(frames, seed=seed, offset=PREAMBLE_LENGTH, synced=3, part=True)
    yield Form("round in parts", b"".join(buffers), list(frames), partial(_frames, seed=seed))


def _frames(data: bytes, *, seed: int) -> list[Frame]:
    found, at = [], 0
    while at < len(data) and (placed := decode_frame(data, at, seed)) is not None:
        found.append(placed.frame)
        at = placed.end
    return found


def _sources() -> Iterator[Form]:
    for number in (0, _LARGEST):
        event_id = encode_event_id("producer.1" if number else "p", number, "g1" * bool(number))
        yield Form(f"event id {number}", event_id, parse_event_id(event_id), parse_event_id)
    position = FilePosition(
        name=_NAME, device=1, inode=_LARGEST, offset=2, line=3, modified_ns=4, head_length=5,
        head="ab", tail="cd", finished=True, log="ü",
    )  # fmt: skip
    yield Form("position in a file", position.encode(), position, FilePosition.decode)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dead"
        with DeadLetterFile(path, now_ms=lambda: _LARGEST, max_raw_bytes=9) as file:
            file.write("datei:ü", f"line 3 of {_NAME}", "zu groß", b"\0\xff" * 9)
            headers = [("ü", b"\xff"), ("leer", None)]
            file.write_whole("s", "event 1", "r", b"v", key=b"\0", headers=headers, timestamp_ms=-1)
            file.write_whole("s", "event 2", "r", None)
        yield Form("dead-letter file", path.read_bytes())


def _record() -> None:
    found = {form.name: as_golden(form) for form in forms()}
    lines = (f"{json.dumps(name)}: {json.dumps(one)}" for name, one in found.items())
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    sys.stderr.write(f"{len(found)} forms\n")


if __name__ == "__main__":
    _record()
