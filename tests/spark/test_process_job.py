"""A topology behind the reorder stage, and what becomes of events when something fails."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sequitur.cli.dead_letters import Selection, request_rows
from sequitur.consumer.topology.step.tasks import AckerTask
from sequitur.errors import TopicError, TopologyFileError, TopologyTaskError
from sequitur.pipelines.topology.step_runs import replays_folder, write_request
from tests.spark import bolts
from tests.spark.conftest import Job, wait_until
from tests.support.events import by_partition, event, time_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sequitur.consumer.topology import Topology
    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark


T0 = 1_700_000_000_000
_BOTH = pytest.mark.parametrize("make", [bolts.chain, bolts.spread])


def _balanced(job: Job) -> dict[str, int]:
    """Counts of the events, of which none is unaccounted for."""
    counts = job.processed()
    assert counts["taken"] + counts["replayed"] == (
        counts["acked"] + counts["dead"] + counts["pending"]
    )
    return counts


@pytest.mark.promise("process-event-fails-later")
@_BOTH
def test_each_event_is_processed_once_in_order(job: Job, make: Callable[[], Topology]) -> None:
    """Events shuffled on the way in come out of the bolts once, each key's in event-time order."""
    job = job.running_topology(make())
    times = [T0 + (7 * number) % 1000 for number in range(1000)]
    job.produce(event(time_ms, key=f"k{time_ms % 13}") for time_ms in times)
    job.run(drain=True)
    found = job.released()
    assert sorted(map(time_of, found)) == sorted(times)
    for records in by_partition(found).values():
        ordered = [time_of(record) for record in records]
        assert ordered == sorted(ordered)
    assert _balanced(job)["acked"] == 1000
    assert {json.loads(record.value or b"")["attempt"] for record in found} == {1}


@pytest.mark.promise("process-bolt-raises-fails", "process-event-fails-later")
@_BOTH
def test_failed_event_is_tried_again_and_holds_its_key(
    job: Job, make: Callable[[], Topology]
) -> None:
    """What fails twice comes out at its third attempt, before what is later of its key."""
    job = job.running_topology(make(), retry_delay="50 ms")
    job.produce([event(T0 + n, key="good") for n in range(20)])
    job.produce([event(T0 + n, key="bad", **({"fails": 2} if n == 5 else {})) for n in range(20)])
    job.run(drain=True)
    found = job.released()
    bad = [record for record in found if record.key == b"bad"]
    assert [time_of(record) for record in bad] == [T0 + n for n in range(20)]
    attempts = {time_of(record): json.loads(record.value or b"")["attempt"] for record in bad}
    assert attempts[T0 + 5] == 3
    good = [record for record in found if record.key == b"good"]
    assert [time_of(record) for record in good] == [T0 + n for n in range(20)]
    counts = _balanced(job)
    assert (counts["acked"], counts["failed"], counts["pending"]) == (40, 2, 0)


@pytest.mark.promise("process-event-keeps-failing")
@_BOTH
def test_event_that_keeps_failing_is_dead_lettered(job: Job, make: Callable[[], Topology]) -> None:
    """After max_attempts it is told about with all there is to know, and its key goes on."""
    job = job.running_topology(make(), max_attempts=3, retry_delay="10 ms")
    job.produce([event(T0, key="k"), event(T0 + 1, key="k", fails=99), event(T0 + 2, key="k")])
    job.run(drain=True)
    assert [time_of(record) for record in job.released()] == [T0, T0 + 2]
    (letter,) = job.dead_letters()
    headers = {name: (value or b"").decode() for name, value in letter.headers}
    assert time_of(letter) == T0 + 1
    assert headers["sequitur-dlq-reason"] == "exception"
    assert headers["sequitur-dlq-attempts"] == "3"
    assert headers["sequitur-dlq-path"] == "events > enrich"
    assert "ValueError: attempt 3" in headers["sequitur-dlq-traceback"]
    assert (_balanced(job)["acked"], job.processed()["dead"]) == (2, 1)


@pytest.mark.promise("process-call-bolt-hangs")
@_BOTH
def test_call_that_hangs_is_ended(job: Job, make: Callable[[], Topology]) -> None:
    """A call that does not return in call_timeout fails its event with that reason."""
    job = job.running_topology(make(), call_timeout="500 ms", max_attempts=1)
    job.produce([event(T0, key="a"), event(T0 + 1, key="b", hangs=1), event(T0 + 2, key="c")])
    job.run(drain=True)
    assert sorted(time_of(record) for record in job.released()) == [T0, T0 + 2]
    (letter,) = job.dead_letters()
    assert dict(letter.headers)["sequitur-dlq-reason"] == b"timeout"
    assert _balanced(job)["late_acks"] >= 1


@pytest.mark.promise("process-process-dies-event")
@_BOTH
def test_event_that_kills_its_process_is_found(job: Job, make: Callable[[], Topology]) -> None:
    """A segmentation fault costs a retry; the event that makes it is dead-lettered, no other."""
    job = job.running_topology(make())
    job.produce(
        event(T0 + n, key=f"k{n % 7}", **({"kills": 1} if n == 37 else {})) for n in range(60)
    )
    job.run(drain=True)
    assert sorted(time_of(record) - T0 for record in job.released()) == [
        n for n in range(60) if n != 37
    ]
    (letter,) = job.dead_letters()
    assert time_of(letter) == T0 + 37
    assert dict(letter.headers)["sequitur-dlq-reason"] == b"crash"
    assert _balanced(job)["crashes"] >= 2


@pytest.mark.promise("process-bolt-raises-fails", "process-bolts-keep-state")
def test_words_are_counted_over_batches(job: Job) -> None:
    """Equal words meet in one task, and what it counted is there in the next batch."""
    job = job.running_topology(bolts.word_count(), retry_delay="10 ms")
    job.produce([event(T0, text="to be or not to be"), event(T0 + 1, text="a bad idea")])
    job.run(drain=True)
    job.produce([event(T0 + 2000, text="to go")])
    job.run(drain=True)
    last: dict[str, int] = {}
    for record in job.released():
        word, count = (record.key or b"").decode(), int(record.value or b"")
        last[word] = max(count, last.get(word, 0))
    assert last["to"] == 3
    assert last["be"] == 2
    assert last["bad"] == 1
    assert _balanced(job)["failed"] == 1


@pytest.mark.promise("process-several-events-share")
def test_join_is_out_when_all_its_events_are_done(job: Job) -> None:
    """An output of several events goes out once; an event that nobody acks fails as never-acked."""
    job = job.running_topology(bolts.pairs(), max_attempts=1)
    job.produce([event(T0 + n, key=f"k{n}", id=f"pair {n // 2}") for n in range(9)])
    job.run(drain=True)
    assert sorted(record.key or b"" for record in job.released()) == [
        b"pair 0", b"pair 1", b"pair 2", b"pair 3",
    ]  # fmt: skip
    (letter,) = job.dead_letters()
    assert time_of(letter) == T0 + 8
    assert dict(letter.headers)["sequitur-dlq-reason"] == b"never-acked"
    assert _balanced(job)["acked"] == 8


@pytest.mark.promise("process-event-comes")
def test_windows_close_in_silence_by_bolts_that_are_prepared_once(job: Job, tmp_path: Path) -> None:
    """Ticks come and the watermark goes on without events; steps go on with the bolts they have."""
    job = job.with_settings(idle_timeout="1 s").running_topology(bolts.silent_windows(tmp_path))
    ticks, begin_ms = tmp_path / "ticks", T0 - T0 % 10_000
    with job.running() as life:
        job.produce(event(begin_ms + 9_000 + n, key=f"k{n}") for n in range(40))
        counted = 0
        while counted < 40 or ticks.stat().st_size < 40:
            assert not life.done()
            time.sleep(0.1)
            if job.steps:
                counted = sum(json.loads(one.value or b"")["count"] for one in job.released())
    assert {time_of(record) for record in job.released()} == {begin_ms}
    assert counted == 40
    assert _balanced(job)["acked"] == 40
    prepared = (tmp_path / "prepared").read_text().splitlines()
    pooled = [one for one in prepared if " pooled " in one]
    # Whichever of Spark's processes has a task, it prepares the task's bolt once.
    assert len(pooled) == len(set(pooled))
    assert len(pooled) < ticks.stat().st_size


_SPARKS_OWN = 4
"""Spark runs a task so often by itself: the default master is `local[2,4]`."""


@pytest.mark.promise("process-process-task-dies")
@_BOTH
@pytest.mark.parametrize(("times", "crashes"), [(1, 0), (_SPARKS_OWN, 1)])
def test_process_that_dies_costs_a_retry(
    job: Job, make: Callable[[], Topology], tmp_path: Path, times: int, crashes: int
) -> None:
    """A process killed from outside takes nothing with it: Spark runs its task again, or we do."""
    marker = tmp_path / "died"
    job = job.running_topology(make())
    job.produce(event(T0 + n, key=f"k{n % 7}") for n in range(40) if n != 11)
    job.produce([event(T0 + 11, key="k4", dies=str(marker), times=times)])
    job.run(drain=True)
    assert marker.stat().st_size == times
    assert sorted(time_of(record) - T0 for record in job.released()) == list(range(40))
    counts = _balanced(job)
    assert (counts["crashes"], counts["dead"], counts["acked"]) == (crashes, 0, 40)


@pytest.mark.promise("process-process-acker-dies")
def test_acker_that_dies_is_run_again(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdicts of an acker whose process died are found anew, from what tasks left on disk."""
    monkeypatch.setattr(
        "sequitur.consumer.topology.step.run.AckerTask",
        lambda *given: bolts.DyingAcker(AckerTask(*given), str(tmp_path / "died")),
    )
    job = job.running_topology(bolts.spread())
    job.produce(event(T0 + n, key=f"k{n % 7}") for n in range(40))
    job.run(drain=True)
    assert (tmp_path / "died").exists()
    assert sorted(time_of(record) - T0 for record in job.released()) == list(range(40))
    assert _balanced(job)["acked"] == 40


@pytest.mark.promise("process-job-stopped-events")
@_BOTH
def test_pending_events_outlive_a_restart(job: Job, make: Callable[[], Topology]) -> None:
    """A failed event and those it holds wait on disk, and are processed by the next run."""
    job = job.running_topology(make(), retry_delay="5 s")
    job.produce([event(T0 + n, key="k", **({"fails": 1} if n == 3 else {})) for n in range(6)])
    job.produce([event(T0 + 5000, key="later", partition=p) for p in range(4)])
    with job.running():
        wait_until(lambda: any((done.processed or {}).get("pending") for _, done in job.steps))
    before = _balanced(job)
    assert (before["acked"], before["pending"], before["failed"]) == (3, 3, 1)
    assert [time_of(record) - T0 for record in job.released()] == [0, 1, 2]
    job.run(drain=True)
    assert [time_of(record) - T0 for record in job.released() if record.key == b"k"] == [
        0, 1, 2, 3, 4, 5,
    ]  # fmt: skip
    after = _balanced(job)
    assert (after["acked"], after["pending"], after["failed"]) == (10, 0, 1)


@pytest.mark.promise("process-events-wait")
@_BOTH
def test_no_new_events_are_read_while_too_many_wait(job: Job, make: Callable[[], Topology]) -> None:
    """With max_pending events waiting, these are settled before the next batch is begun."""
    job = job.with_settings(max_offsets_per_trigger=10).running_topology(
        make(), max_pending=2, retry_delay="200 ms", max_attempts=3
    )
    job.produce([event(T0 + n, key="k", partition=0, fails=9 if n < 2 else 0) for n in range(6)])
    job.produce([event(T0 + 100_000 + n, key="k", partition=0) for n in range(40)])
    job.run(drain=True)
    assert _balanced(job)["dead"] == 2
    assert len(job.released()) == 44
    waits = [(done.processed or {})["pending"] for entry, done in job.steps if entry.staged.read]
    assert max(waits) <= 2 + 10


@pytest.mark.promise("process-dead-letters-replayed")
@_BOTH
def test_dead_letters_are_given_back(job: Job, make: Callable[[], Topology]) -> None:
    """A replayed dead letter is processed as a new event, once, with its own headers."""
    job = job.running_topology(make(), max_attempts=1)
    sent = event(T0 + 1, key="k", fails=1)
    job.produce([event(T0, key="k"), sent, event(T0 + 2, key="k")])
    job.run(drain=True)
    letters = list(Selection().of(job.dead_letters()))
    folder = replays_folder(job.settings)
    write_request(folder, request_rows(letters))
    write_request(folder, request_rows(letters))  # asked for twice, it is given back once
    later = job.running_topology(bolts.forgiving(make), max_attempts=1)
    later.run(drain=True)
    assert sorted(time_of(record) - T0 for record in later.released()) == [0, 1, 2]
    counts = _balanced(later)
    assert (counts["replayed"], counts["pending"], counts["dead"]) == (1, 0, 1)
    later.produce([event(T0 + 9000, key="k")])
    later.run(drain=True)
    assert _balanced(later)["replayed"] == 1
    assert list(folder.iterdir()) == []


@pytest.mark.promise("process-events-tracked-ackers")
@_BOTH
def test_without_ackers_each_event_is_acked_at_once(job: Job, make: Callable[[], Topology]) -> None:
    """With ackers = 0 a failure is counted, and nothing is tried again or held."""
    job = job.running_topology(make(), ackers=0)
    job.produce([event(T0 + n, key="k", **({"fails": 9} if n == 1 else {})) for n in range(4)])
    job.run(drain=True)
    assert [time_of(record) - T0 for record in job.released()] == [0, 2, 3]
    counts = _balanced(job)
    assert (counts["acked"], counts["failed"], counts["untracked_failures"]) == (4, 0, 1)


@pytest.mark.promise("process-event-fails-later")
@_BOTH
def test_without_ordering_others_of_the_key_go_on(job: Job, make: Callable[[], Topology]) -> None:
    """With ordering = "none" what failed comes out when it succeeds, behind later ones."""
    job = job.running_topology(make(), ordering="none")
    job.produce([event(T0 + n, key="k", **({"fails": 1} if n == 1 else {})) for n in range(4)])
    job.run(drain=True)
    assert [time_of(record) - T0 for record in job.released()] == [0, 2, 3, 1]
    assert _balanced(job)["acked"] == 4


@pytest.mark.promise("process-tree-fails-behind")
@pytest.mark.parametrize(("outputs", "copies"), [("finished", 1), ("immediate", 2)])
def test_outputs_of_a_failed_tree(job: Job, outputs: str, copies: int) -> None:
    """A tree that failed behind an output has written nothing, or, with immediate, twice in all."""
    job = job.running_topology(bolts.branches(), outputs=outputs)
    job.produce([event(T0, key="k", fails=1)])
    job.run(drain=True)
    assert [time_of(record) for record in job.released()] == [T0] * copies
    assert _balanced(job)["acked"] == 1


@pytest.mark.promise("process-number-open-trees")
@_BOTH
def test_trees_in_flight_are_bounded(job: Job, make: Callable[[], Topology]) -> None:
    """With max_spout_pending a batch is processed in several goes, with the same outcome."""
    job = job.running_topology(make(), max_spout_pending=40, max_attempts=2, retry_delay="10 ms")
    job.produce(
        event(T0 + n, key=f"k{n % 13}", **({"fails": n % 3} if n % 50 == 0 else {}))
        for n in range(400)
    )
    job.run(drain=True)
    dead = [n for n in range(0, 400, 50) if n % 3 == 2]
    found = [time_of(record) - T0 for record in job.released()]
    assert sorted(found) == [n for n in range(400) if n not in dead]
    for key in range(13):
        own = [n for n in found if n % 13 == key]
        assert own == sorted(own)
    assert _balanced(job)["dead"] == len(dead)


@pytest.mark.promise("process-bolt-get-ready")
def test_bolt_that_cannot_get_ready_ends_the_job_by_name(job: Job) -> None:
    """There is no event to blame: the job ends, says whose error it is, and loses nothing."""
    broken = job.running_topology(bolts.one_bolt(bolts.Unready(), tasks=None))
    job.produce([event(T0, key="k")])
    with pytest.raises(TopologyTaskError, match=r"'only', task \d: its prepare raised Connec"):
        broken.run(drain=True)
    mended = job.running_topology(replace(bolts.chain(), name="one-bolt"))
    mended.run(drain=True)
    assert [time_of(record) for record in mended.released()] == [T0]


@pytest.mark.promise("process-several-events-share")
@pytest.mark.parametrize("make", [bolts.pairs_and_more, bolts.pairs_here])
@pytest.mark.parametrize("failing", [0, 1])
def test_events_that_share_an_output_are_tried_again_together(
    job: Job, make: Callable[[], Topology], failing: int
) -> None:
    """A pair of which one event fails elsewhere goes out once, when both are done, and whole."""
    job = job.running_topology(make(), retry_delay="50 ms")
    job.produce(
        event(T0 + n, key=f"k{n}", partition=0, id=f"pair {n // 2}", fails=int(n == failing))
        for n in range(4)
    )
    # All in one partition of the ordered stream, too, where the join is in its tasks.
    job = job.with_settings(output_partitions=1)
    job.run(drain=True)
    found = [(record.key, record.value) for record in job.released()]
    assert sorted(found) == [(b"pair 0", b"2"), (b"pair 1", b"2")]
    counts = _balanced(job)
    assert (counts["acked"], counts["failed"], counts["pending"]) == (4, 1, 0)


def test_what_a_bolt_keeps_no_more_is_gone(job: Job) -> None:
    """A snapshot of None takes the place of what was kept before."""
    job = job.running_topology(bolts.one_bolt(bolts.Forgetful(), tasks=None))
    for number in range(3):
        job.produce([event(T0 + 10_000 * number, key="k")])
        job.run(drain=True)
    assert [record.value for record in job.released()] == [b"1", b"2", b"1"]


@pytest.mark.promise("process-bolt-keeps-state")
def test_tasks_that_keep_state_stay_as_many(job: Job) -> None:
    """Another parallelism would part tuples from what was kept of them: it is refused by name."""
    job.produce([event(T0, key="k")])
    job.running_topology(bolts.one_bolt(bolts.Forgetful(), tasks=2)).run(drain=True)
    for tasks in (1, 3):
        other = job.running_topology(bolts.one_bolt(bolts.Forgetful(), tasks=tasks))
        with pytest.raises(TopologyFileError, match=f"2 tasks of bolt 'only', which has {tasks}"):
            other.run()


@pytest.mark.promise("process-bolt-calls-sys")
@_BOTH
def test_exit_in_a_bolt_fails_its_event(job: Job, make: Callable[[], Topology]) -> None:
    """A bolt that calls `sys.exit` ends neither the task nor the job."""
    job = job.running_topology(make(), max_attempts=1)
    job.produce([event(T0, key="a", exits=1), event(T0 + 1, key="b")])
    job.run(drain=True)
    assert [time_of(record) - T0 for record in job.released()] == [1]
    (letter,) = job.dead_letters()
    assert dict(letter.headers)["sequitur-dlq-reason"] == b"exception"


@pytest.mark.promise("process-finish-batch-raises")
def test_batch_that_is_never_finished_is_ended(job: Job) -> None:
    """A `finish_batch` that does not return in call_timeout fails what it was given."""
    topology = bolts.one_bolt(bolts.Endless(), tasks=None)
    job = job.running_topology(topology, max_attempts=1, call_timeout="500 ms")
    job.produce([event(T0, key="k")])
    job.run(drain=True)
    (letter,) = job.dead_letters()
    headers = dict(letter.headers)
    assert headers["sequitur-dlq-reason"] == b"timeout"
    assert b"longer than call_timeout" in (headers["sequitur-dlq-traceback"] or b"")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({"mode": "latest"}, [5, 5, 9, 11]), ({"duplicates": "header:id"}, [5, 9, 11])],
)
def test_topology_is_given_what_the_job_releases(
    job: Job, changes: dict[str, str], expected: list[int]
) -> None:
    """Not what is older than what is out of its key, nor repeats where these are dropped."""
    job = job.with_settings(**changes).running_topology(bolts.chain())
    for batch in ([(1, 5), (1, 5), (2, 9)], [(3, 7), (4, 11)]):
        sent = [(number, event(T0 + at, key="k", partition=0)) for number, at in batch]
        job.produce(replace(one, headers=[("id", str(number))]) for number, one in sent)
        job.run(drain=True)
    assert [time_of(record) - T0 for record in job.released()] == expected


@pytest.mark.promise("process-finish-batch-raises")
@pytest.mark.parametrize("tasks", [None, 2])
def test_batch_that_cannot_be_finished_fails_what_it_was_given(job: Job, tasks: int | None) -> None:
    """What `finish_batch` raised stands in the dead letter of the event that it raises for."""
    job = job.running_topology(bolts.one_bolt(bolts.Unfinished(), tasks=tasks), max_attempts=1)
    given = [event(T0 + at, key="k", is_bad=at == 7) for at in range(10)]
    job.produce(given)
    job.run(drain=True)
    assert [json.loads(record.value or b"")["n"] for record in job.released()] == [9]
    (letter,) = job.dead_letters()
    assert time_of(letter) - T0 == 7
    headers = dict(letter.headers)
    assert headers["sequitur-dlq-reason"] == b"exception"
    assert b"ConnectionResetError: database gone" in (headers["sequitur-dlq-traceback"] or b"")


@pytest.mark.promise("process-topology-fit-settings")
def test_topology_must_go_with_the_job(job: Job) -> None:
    """Settings that do not go with a topology are refused by name, before anything is read."""
    running = job.running_topology(bolts.chain())
    with pytest.raises(TopologyFileError, match="late_policy"):
        running.with_settings(late_policy="emit").run()
    by_pattern = running.with_settings(input_topics=[], input_pattern=f"{job.topic}.*")
    with pytest.raises(TopicError, match="which the job writes"):
        by_pattern.with_settings(output_topic="elsewhere").running_topology(
            bolts.chain(), dead_letter_topic=f"{job.topic}.dead"
        ).run()
    with pytest.raises(TopologyFileError, match="two purposes"):
        job.running_topology(bolts.chain(), dead_letter_topic=job.settings.late).run()
