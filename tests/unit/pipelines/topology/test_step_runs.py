"""Steps of a topology, as the job's tasks run them, without Spark."""

from __future__ import annotations

import pickle
import shutil
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.base.stored import dump, load
from sequitur.consumer.reorder.clock import EventClock, Look
from sequitur.consumer.reorder.step_log import StepEntry, StepKind, Totals
from sequitur.consumer.topology import Bolt, ProcessSettings, TopologyBuilder, bolt
from sequitur.errors import ConservationError
from sequitur.kafka.partition import SourcePartition
from sequitur.pipelines.topology import output_files, replays
from sequitur.pipelines.topology.output_files import OutputFiles
from sequitur.pipelines.topology.replays import ReplayIntake
from sequitur.pipelines.topology.step_runs import reached_ms
from tests.support.bolts import Neighbours
from tests.support.step_runs import StepRuns, event

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.consumer.topology import Event, Topology, Tuple


@bolt(fields=("key", "value"))
def pass_on(given: Event) -> Iterator[Any]:
    yield given.key, given.value


def passing_topology() -> Topology:
    """One stage, in which a bolt passes each event on to an output."""
    builder = TopologyBuilder("pass")
    builder.set_spout("events")
    builder.set_bolt("work", pass_on).local_grouping("events")
    builder.set_output("out").local_grouping("work")
    return builder.build()


@pytest.mark.promise("process-output-record-lost")
def test_an_output_that_is_lost_on_its_way_stops_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records that bolts emitted are counted, and those in the files."""
    runs = StepRuns(passing_topology(), tmp_path)
    runs.step([event(number) for number in range(3)])
    assert (runs.counts["acked"], len(runs.records("out"))) == (3, 3)
    write_out = OutputFiles._write_out
    monkeypatch.setattr(
        OutputFiles, "_write_out", lambda self, name, rows: write_out(self, name, rows[1:])
    )
    with pytest.raises(ConservationError, match="bolts emitted 2 records, but 1 are in files"):
        runs.step([event(number) for number in (3, 4)])


@pytest.mark.promise("process-output-record-lost")
def test_a_disk_that_fails_in_a_bolts_call_ends_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bolt's event is not blamed, and no record of it is passed over."""

    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(output_files, "_RECORDS_AT_ONCE", 2)
    monkeypatch.setattr(OutputFiles, "_write_out", full)
    with pytest.raises(OSError, match="no space left"):
        StepRuns(passing_topology(), tmp_path).step([event(n) for n in range(5)])


@bolt
def refuse(given: Event) -> None:
    """Fail what says so, in so many attempts."""
    found = given["value"]
    if found[:1] == b"f" and given.attempt <= int(found[1:]):
        raise ValueError("refused")


def _neighbours(tasks: int | None) -> Topology:
    """Pairs of neighbours; in one stage, or the join in a task of its own."""
    builder = TopologyBuilder("neighbours")
    builder.set_spout("events")
    if tasks is None:
        builder.set_bolt("join", Neighbours()).local_grouping("events")
    else:
        builder.set_bolt("join", Neighbours(), tasks).global_grouping("events")
    builder.set_bolt("refuse", refuse).local_grouping("events")
    builder.set_output("out").local_grouping("join")
    return builder.build()


_STAGES = pytest.mark.parametrize("tasks", [None, 2], ids=["one stage", "several"])
_SLOW = ProcessSettings(retry_jitter=0, retry_delay=timedelta(milliseconds=100), retry_factor=2)


@pytest.mark.promise("process-events-share-outputs")
@_STAGES
def test_events_on_a_chain_of_shared_outputs_run_together(
    tmp_path: Path, tasks: int | None
) -> None:
    """However long the chain, and however often each was tried: at the time of the last of them."""
    runs = StepRuns(_neighbours(tasks), tmp_path, _SLOW)
    runs.step([event(30, b"f2")])
    runs.now_ms = 1_100
    runs.step([event(10, b"f1"), event(20, b"b")])
    assert [(one.event[6], one.retry_at_ms) for one in runs.pending()] == [
        (10, 1_300), (20, 1_300), (30, 1_300),
    ]  # fmt: skip
    runs.to_the_end()
    assert runs.records("out") == [(None, b"f1+b"), (None, b"b+f2")]
    assert (runs.counts["acked"], runs.counts["dead"]) == (3, 0)


@pytest.mark.promise("process-events-share-outputs")
@_STAGES
def test_an_event_that_shares_an_output_is_not_tried_past_its_last_attempt(
    tmp_path: Path, tasks: int | None
) -> None:
    """It is dead then, and never runs again behind a later event of its key."""
    settings = _SLOW.model_copy(update={"max_attempts": 2})
    runs = StepRuns(_neighbours(tasks), tmp_path, settings)
    runs.step([event(10, b"f9", key=b"a")])
    runs.now_ms = 1_100
    runs.step([event(20, b"f1", key=b"b"), event(30, b"c", key=b"a")])
    assert [value for _, value in runs.dead()] == [b"f9"]
    runs.to_the_end()
    assert [value for _, value in runs.dead()] == [b"f9"]
    assert runs.records("out") == [(None, b"f1+c")]
    assert (runs.counts["acked"], runs.counts["failed"]) == (2, 3)


class Forgets(Bolt):
    """Never acks what says so, in so many attempts, and raises for others at once."""

    fields = ("key", "value")

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        how, times = tuple["value"][:1], int(tuple["value"][1:])
        if tuple.attempt > times:
            self.collector.emit((tuple["key"], tuple["value"]), tuple)
            self.collector.ack(tuple)
        elif how == b"f":
            raise ValueError("refused")


@pytest.mark.promise("process-events-key-wait")
def test_a_key_is_due_when_its_first_event_is(tmp_path: Path) -> None:
    """Not when a later one would be: that is a step in which nothing runs, again and again."""
    settings = _SLOW.model_copy(update={"retry_factor": 600.0})
    builder = TopologyBuilder("forgets")
    builder.set_spout("events")
    builder.set_bolt("work", Forgets()).local_grouping("events")
    builder.set_output("out").local_grouping("work")
    runs = StepRuns(builder.build(), tmp_path, settings)
    runs.step([event(10, b"n2", key=b"k")])
    runs.now_ms = 1_100
    runs.step([event(20, b"f1", key=b"k")])
    assert [one.retry_at_ms for one in runs.pending()] == [61_100, 1_200]
    assert runs.next_due_ms == 61_100
    runs.to_the_end(most=1)
    assert runs.records("out") == [(b"k", b"n2"), (b"k", b"f1")]


@pytest.mark.promise("process-events-key-wait")
def test_an_event_without_a_key_waits_for_no_stranger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is held for one that it shared an output with, which is dead; it is due at once."""
    settings = _SLOW.model_copy(update={"max_attempts": 2, "retry_delay": timedelta(minutes=1)})
    runs = StepRuns(_neighbours(None), tmp_path, settings, partitions=1)
    runs.step([event(20, b"f9")])
    runs.now_ms = 61_000
    monkeypatch.setattr(Neighbours, "finish_batch", _first_and_last)
    runs.step([event(10, b"f1"), event(30, b"c")])
    assert [value for _, value in runs.dead()] == [b"f9"]
    assert [one.event[6] for one in runs.pending()] == [10, 30]
    assert runs.next_due_ms == 61_000


def _first_and_last(self: Neighbours) -> None:
    self.collector.emit((None, b""), (self.held[0], self.held[-1]))
    for one in self.held:
        self.collector.ack(one)
    self.held.clear()


@pytest.mark.promise("process-output-named-dead")
def test_an_output_may_be_named_as_dead_letters_are(tmp_path: Path) -> None:
    builder = TopologyBuilder("named")
    builder.set_spout("events")
    builder.set_bolt("refuse", refuse).local_grouping("events")
    builder.set_output("dead-letters").local_grouping("events")
    runs = StepRuns(builder.build(), tmp_path, ProcessSettings(max_attempts=1))
    runs.step([event(1, b"good"), event(2, b"f9")])
    assert runs.records("dead-letters") == [(None, b"good")]
    assert runs.dead() == [(None, b"f9")]


class AtTheEnd(Bolt):
    """Emits without an anchor when its batch is finished."""

    fields = ("key", "value")

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        self.collector.ack(tuple)

    def finish_batch(self) -> None:
        self.collector.emit((None, b"task %d" % self.context.task))


@pytest.mark.promise("process-bolt-emits-anchor")
@pytest.mark.parametrize("tasks", [None, 3], ids=["one stage", "several"])
def test_a_task_without_events_may_emit_at_the_end_of_a_batch(
    tmp_path: Path, tasks: int | None
) -> None:
    """Of no event; the record stands behind those of the step, and no verdict takes it back."""
    builder = TopologyBuilder("ends")
    builder.set_spout("events")
    builder.set_bolt("end", AtTheEnd(), tasks).fields_grouping("events", "key")
    builder.set_bolt("pass", pass_tuple, 1).global_grouping("end")
    builder.set_output("out").local_grouping("pass")
    runs = StepRuns(builder.build(), tmp_path, partitions=2)
    runs.step([event(1, key=b"k")])
    expected = [(None, b"task %d" % task) for task in range(tasks or 2)]
    assert sorted(runs.records("out")) == expected
    assert runs.counts["acked"] == 1


@bolt(fields=("key", "value"))
def pass_tuple(given: Tuple) -> Iterator[Any]:
    yield given["key"], given["value"]


class Unpicklable:
    """Refuses to be pickled, or to be made again."""

    def __init__(self, *, is_made: bool) -> None:
        self.is_made = is_made

    def __reduce__(self) -> Any:
        if self.is_made:
            raise TypeError("cannot pickle this")
        return _refuse_to_be_made, ()


def _refuse_to_be_made() -> None:
    raise TypeError("cannot make this")


@bolt(fields=("key", "value"))
def odd(given: Event) -> Iterator[Any]:
    """Emit what cannot go to another process, where the value says so."""
    value: Any = given.value
    if value in {b"dump", b"load"}:
        value = Unpicklable(is_made=value == b"dump")
    yield given.key, value


def odd_topology() -> Topology:
    builder = TopologyBuilder("odd")
    builder.set_spout("events")
    builder.set_bolt("odd", odd).local_grouping("events")
    builder.set_bolt("pass", pass_tuple, 2).shuffle_grouping("odd")
    builder.set_output("out").local_grouping("pass")
    return builder.build()


@pytest.mark.promise("process-bolt-emits-values")
@pytest.mark.parametrize("what", [b"dump", b"load"])
def test_a_value_that_cannot_go_to_a_later_stage_fails_its_event(
    tmp_path: Path, what: bytes
) -> None:
    """And no other one: neither that of its task nor that of its file."""
    runs = StepRuns(odd_topology(), tmp_path, ProcessSettings(max_attempts=1))
    runs.step([event(1, b"1"), event(2, what), event(3, b"3")])
    assert runs.records("out") == [(None, b"1"), (None, b"3")]
    assert runs.dead() == [(None, what)]
    assert runs.counts["acked"] == 2
    (headers,) = runs.dead_headers()
    assert headers["sequitur-dlq-reason"] == b"exception"
    detail = headers["sequitur-dlq-traceback"]
    assert b"'odd'" in detail
    assert b"pickled" in detail


class Counts(Bolt):
    """Counts its tuples, over all batches."""

    def prepare(self, context: Any, collector: Any) -> None:
        super().prepare(context, collector)
        self.count = 0

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        self.count += 1
        self.collector.ack(tuple)

    def snapshot(self) -> int:
        return self.count

    def restore(self, state: int) -> None:
        self.count = state


@pytest.mark.promise("process-bolts-keep-state")
def test_state_that_has_not_changed_is_not_written_anew(tmp_path: Path) -> None:
    """Each step names its own file of it, and outlives the step before."""
    builder = TopologyBuilder("counts")
    builder.set_spout("events")
    builder.set_bolt("count", Counts()).local_grouping("events")
    runs = StepRuns(builder.build(), tmp_path, partitions=2)
    paths = []
    for given in ([event(1), event(2, partition=1)], [event(3)], []):
        runs.step(given)
        paths.append({task: Path(str(path)) for (_, task), path in runs.states.items()})
    first, second, third = (
        {task: path.stat().st_ino for task, path in step.items()} for step in paths
    )
    assert first[0] != second[0] == third[0]
    assert first[1] == second[1] == third[1]
    shutil.rmtree(tmp_path / "0")
    shutil.rmtree(tmp_path / "1")
    assert {task: pickle.loads(path.read_bytes()) for task, path in paths[2].items()} == {
        0: 2,
        1: 1,
    }


class FailsSome(Bolt):
    """Passes on what it is given; what says so only after so many attempts."""

    fields = ("key", "value")

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        self.collector.emit((tuple["key"], tuple["value"]), tuple)
        if tuple["value"][:1] == b"f" and tuple.attempt <= int(tuple["value"][1:]):
            self.collector.fail(tuple)
        else:
            self.collector.ack(tuple)


def _fails_some(tasks: int | None) -> Topology:
    builder = TopologyBuilder("fails some")
    builder.set_spout("events")
    builder.set_bolt("work", FailsSome(), tasks).fields_grouping("events", "key")
    builder.set_output("out").local_grouping("work")
    return builder.build()


@pytest.mark.promise("process-events-place-topic")
@_STAGES
@pytest.mark.parametrize("most", [None, 1], ids=["at once", "in waves"])
@pytest.mark.parametrize("other", [b"k", b"j"], ids=["one key", "two keys"])
def test_events_of_one_place_have_each_a_fate_of_its_own(
    tmp_path: Path,
    tasks: int | None,
    *,
    most: int | None,
    other: bytes,
) -> None:
    """A dead letter that is replayed, and an event that is read again at its place, in one step."""
    settings = _SLOW.model_copy(update={"max_spout_pending": most, "max_attempts": 3})
    pairs = [(b"f1", b"new"), (b"old", b"f1"), (b"f1", b"f2"), (b"f9", b"a")]
    for number, (old, new) in enumerate(pairs):
        folder = tmp_path / f"case {number}"
        runs = StepRuns(_fails_some(tasks), folder, settings, partitions=2)
        runs.give_back([event(5, old, key=b"k")], task=1)
        runs.step([event(5, new, key=other), event(6, b"z", key=b"k")])
        runs.to_the_end()
        given = [(b"k", old), (other, new), (b"k", b"z")]
        dead = [one for one in given if one[1] == b"f9"]
        assert sorted(runs.dead()) == dead
        assert sorted(runs.records("out")) == sorted(one for one in given if one not in dead)
        assert (runs.counts["acked"], runs.counts["dead"]) == (3 - len(dead), len(dead))


@pytest.mark.promise("process-events-place-topic")
@_STAGES
def test_one_event_that_is_given_back_twice_in_a_step_runs_twice(
    tmp_path: Path, tasks: int | None
) -> None:
    """Also where one of the two is done at once, and the other waits for its key."""
    runs = StepRuns(_fails_some(tasks), tmp_path, _SLOW)
    runs.give_back([event(5, b"a", key=b"k"), event(4, b"f1", key=b"k")])
    runs.step([event(5, b"a", key=b"k")])
    runs.to_the_end()
    assert runs.records("out") == [(b"k", b"f1"), (b"k", b"a"), (b"k", b"a")]
    assert runs.counts["acked"] == 3


@pytest.mark.promise("process-wall-clock-set")
def test_a_clock_that_is_set_back_delays_no_retry(tmp_path: Path) -> None:
    """What would wait longer than any delay is due at once: its time is another clock's."""
    runs = StepRuns(_fails_some(None), tmp_path, _SLOW)
    runs.now_ms = 3_700_000
    runs.step([event(5, b"f1", key=b"k")])
    assert runs.next_due_ms == 3_700_100
    runs.now_ms = 100_000
    assert runs.due_ms() == 100_000
    runs.step()
    assert runs.records("out") == [(b"k", b"f1")]


@bolt(fields=("key", "value"))
def dies_of_some(given: Event) -> Iterator[Any]:
    """Pass it on, unless it ends the process."""
    if given["value"] == b"dies":
        raise KeyboardInterrupt
    yield given["key"], given["value"]


@pytest.mark.promise("process-events-place-topic")
@_STAGES
def test_of_two_events_of_one_place_one_may_kill_its_process(
    tmp_path: Path, tasks: int | None
) -> None:
    """It is given up by itself, whichever of the two it is; the outcome of a repeat is the same."""
    builder = TopologyBuilder("dies")
    builder.set_spout("events")
    builder.set_bolt("work", dies_of_some, tasks).fields_grouping("events", "key")
    builder.set_output("out").local_grouping("work")
    topology = builder.build()
    for number, (old, new) in enumerate([(b"dies", b"a"), (b"a", b"dies"), (b"dies", b"dies")]):
        good = [(b"k", one) for one in (old, new) if one == b"a"]
        for attempt in range(2):
            runs = StepRuns(topology, tmp_path / f"{number} {attempt}", _SLOW)
            runs.give_back([event(5, old, key=b"k")])
            runs.step([event(5, new, key=b"k")])
            assert runs.records("out") == good
            assert runs.dead() == [(b"k", b"dies")] * (2 - len(good))
            assert (runs.counts["acked"], runs.pending()) == (len(good), [])


def _listings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    listed: list[Path] = []
    requests = replays.requests

    def counted(folder: Any) -> Any:
        listed.append(folder)
        return requests(folder)

    monkeypatch.setattr(replays, "requests", counted)
    return listed


def test_a_tick_lists_its_requests_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What made it due is what it takes in; a step without that look lists them itself."""
    listed = _listings(monkeypatch)
    request = tmp_path / "a.parquet"
    request.touch()
    intake = ReplayIntake(tmp_path)
    assert intake.are_there(taken=())
    assert intake.take() == (request,)
    assert listed == [tmp_path]
    assert intake.take() == (request,)
    assert listed == [tmp_path, tmp_path]


def test_a_request_that_is_taken_in_is_not_taken_again(tmp_path: Path) -> None:
    """Neither while its file is there, nor when it is deleted behind a look."""
    request = tmp_path / "a.parquet"
    request.touch()
    intake = ReplayIntake(tmp_path)
    assert not intake.are_there(taken={"a.parquet"})
    assert intake.are_there(taken=())
    intake.delete({"a.parquet"})
    assert not request.exists()
    assert intake.take() == ()


_AT_MS = 1_700_000_000_000
_IDLE_MS = 60_000
_WHERE = SourcePartition("in", 0)


def _silent_since(clock: EventClock, silent_ms: int) -> EventClock:
    """The clock once the partition, read to its end, has given nothing for so long."""
    now_ms = _AT_MS + silent_ms
    look = Look(5, 5, None if clock.partitions else _AT_MS)
    seen = clock.looked_at({_WHERE: look}, now_ms=now_ms, longest_ms=silent_ms)
    return seen.advance(now_ms=now_ms, delay_ms=0, idle_timeout_ms=_IDLE_MS)


def _decided(clock: EventClock, logged_ms: int) -> StepEntry:
    return StepEntry(
        step=1,
        kind=StepKind.TICK,
        batch_id=0,
        previous_frontier_ms=clock.frontier_ms,
        clock=clock,
        counts=Totals(),
        runs=(),
        before=Totals(),
        logged_ms=logged_ms,
    )


def test_silence_counts_from_when_a_partition_is_idle() -> None:
    """Until then more may come of it; from then on time goes on without events."""
    clock = _silent_since(EventClock(), 0)
    assert reached_ms(_decided(EventClock(), _AT_MS)) is None
    assert reached_ms(_decided(clock, _AT_MS)) == _AT_MS
    clock = _silent_since(clock, _IDLE_MS + 7_000)
    assert reached_ms(_decided(clock, _AT_MS + _IDLE_MS + 7_000)) == _AT_MS + 7_000


@pytest.mark.promise("process-step-staged-silence")
def test_silence_counts_up_to_the_last_look_at_the_input() -> None:
    """A step that the next life decides, hours later, says nothing of what has come meanwhile.

    That would be behind the watermark when it is read: late for windows, though it came in time.
    """
    clock = _silent_since(_silent_since(EventClock(), 0), _IDLE_MS + 7_000)
    clock = load(EventClock, dump(clock))
    assert reached_ms(_decided(clock, _AT_MS + 8 * 3_600_000)) == _AT_MS + 7_000
    assert reached_ms(_decided(clock.drain(), _AT_MS + 8 * 3_600_000)) == _AT_MS + 7_000
