"""What becomes of events in a topology behind the reorder stage.

On Spark tests/spark/test_process_job.py shows it, where processes die and calls hang.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from sequitur.cli.dead_letters import Selection, request_rows
from sequitur.cli.topic_reader import TopicRecord
from sequitur.errors import TopologyFileError
from sequitur.pipelines.topology.replays import REPLAYS_FOLDER, write_request
from tests.spark import bolts
from tests.support.events import T0, event, time_of
from tests.support.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.consumer.topology import Topology
    from tests.support.list_job import ListJob

_BOTH = pytest.mark.parametrize("make", [bolts.chain, bolts.spread])


def _balanced(job: ListJob) -> dict[str, int]:
    """Counts of the events, of which none is unaccounted for."""
    counts = job.processed()
    assert counts["taken"] + counts["replayed"] == (
        counts["acked"] + counts["dead"] + counts["pending"]
    )
    return counts


@pytest.mark.promise("process-bolt-raises-fails", "process-event-fails-later")
@_BOTH
def test_failed_event_is_tried_again_and_holds_its_key(
    job: ListJob, make: Callable[[], Topology]
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
def test_event_that_keeps_failing_is_dead_lettered(
    job: ListJob, make: Callable[[], Topology]
) -> None:
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


@pytest.mark.promise("process-bolt-raises-fails", "process-bolts-keep-state")
def test_words_are_counted_over_batches(job: ListJob) -> None:
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
def test_join_is_out_when_all_its_events_are_done(job: ListJob) -> None:
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


@pytest.mark.promise("process-job-stopped-events")
@_BOTH
def test_pending_events_outlive_a_restart(job: ListJob, make: Callable[[], Topology]) -> None:
    """A failed event and those it holds wait on disk, and are processed by the next run."""
    job = job.running_topology(make(), retry_delay="5 s")
    job.produce([event(T0 + n, key="k", **({"fails": 1} if n == 3 else {})) for n in range(6)])
    job.produce([event(T0 + 5000, key="later", partition=p) for p in range(4)])
    job.run()
    before = _balanced(job)
    assert (before["acked"], before["pending"], before["failed"]) == (3, 3, 1)
    assert [time_of(record) - T0 for record in job.released()] == [0, 1, 2]
    job.run(drain=True)
    assert [time_of(record) - T0 for record in job.released() if record.key == b"k"] == [
        0, 1, 2, 3, 4, 5,
    ]  # fmt: skip
    after = _balanced(job)
    assert (after["acked"], after["pending"], after["failed"]) == (10, 0, 1)


@pytest.mark.promise("process-events-tracked-ackers")
@_BOTH
def test_without_ackers_each_event_is_acked_at_once(
    job: ListJob, make: Callable[[], Topology]
) -> None:
    """With ackers = 0 a failure is counted, and nothing is tried again or held."""
    job = job.running_topology(make(), ackers=0)
    job.produce([event(T0 + n, key="k", **({"fails": 9} if n == 1 else {})) for n in range(4)])
    job.run(drain=True)
    assert [time_of(record) - T0 for record in job.released()] == [0, 2, 3]
    counts = _balanced(job)
    assert (counts["acked"], counts["failed"], counts["untracked_failures"]) == (4, 0, 1)


@pytest.mark.promise("process-event-fails-later")
@_BOTH
def test_without_ordering_others_of_the_key_go_on(
    job: ListJob, make: Callable[[], Topology]
) -> None:
    """With ordering = "none" what failed comes out when it succeeds, behind later ones."""
    job = job.running_topology(make(), ordering="none")
    job.produce([event(T0 + n, key="k", **({"fails": 1} if n == 1 else {})) for n in range(4)])
    job.run(drain=True)
    assert [time_of(record) - T0 for record in job.released()] == [0, 2, 3, 1]
    assert _balanced(job)["acked"] == 4


@pytest.mark.promise("process-tree-fails-behind")
@pytest.mark.parametrize(("outputs", "copies"), [("finished", 1), ("immediate", 2)])
def test_outputs_of_a_failed_tree(job: ListJob, outputs: str, copies: int) -> None:
    """A tree that failed behind an output has written nothing, or, with immediate, twice in all."""
    job = job.running_topology(bolts.branches(), outputs=outputs)
    job.produce([event(T0, key="k", fails=1)])
    job.run(drain=True)
    assert [time_of(record) for record in job.released()] == [T0] * copies
    assert _balanced(job)["acked"] == 1


@pytest.mark.promise("process-number-open-trees")
@_BOTH
def test_trees_in_flight_are_bounded(job: ListJob, make: Callable[[], Topology]) -> None:
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


@pytest.mark.promise("process-several-events-share")
@pytest.mark.parametrize("make", [bolts.pairs_and_more, bolts.pairs_here])
@pytest.mark.parametrize("failing", [0, 1])
def test_events_that_share_an_output_are_tried_again_together(
    job: ListJob, make: Callable[[], Topology], failing: int
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


def test_what_a_bolt_keeps_no_more_is_gone(job: ListJob) -> None:
    """A snapshot of None takes the place of what was kept before."""
    job = job.running_topology(bolts.one_bolt(bolts.Forgetful(), tasks=None))
    for number in range(3):
        job.produce([event(T0 + 10_000 * number, key="k")])
        job.run(drain=True)
    assert [record.value for record in job.released()] == [b"1", b"2", b"1"]


@pytest.mark.promise("process-bolt-keeps-state")
def test_tasks_that_keep_state_stay_as_many(job: ListJob) -> None:
    """Another parallelism would part tuples from what was kept of them: it is refused by name."""
    job.produce([event(T0, key="k")])
    job.running_topology(bolts.one_bolt(bolts.Forgetful(), tasks=2)).run(drain=True)
    for tasks in (1, 3):
        other = job.running_topology(bolts.one_bolt(bolts.Forgetful(), tasks=tasks))
        with pytest.raises(TopologyFileError, match=f"2 tasks of bolt 'only', which has {tasks}"):
            other.run()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({"mode": "latest"}, [5, 5, 9, 11]), ({"duplicates": "header:id"}, [5, 9, 11])],
)
def test_topology_is_given_what_the_job_releases(
    job: ListJob, changes: dict[str, str], expected: list[int]
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
def test_batch_that_cannot_be_finished_fails_what_it_was_given(
    job: ListJob, tasks: int | None
) -> None:
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


@pytest.mark.promise("process-dead-letters-replayed")
@_BOTH
def test_dead_letters_are_given_back(job: ListJob, make: Callable[[], Topology]) -> None:
    """A replayed dead letter is processed as a new event, once, with its own headers."""
    job = job.running_topology(make(), max_attempts=1)
    sent = event(T0 + 1, key="k", fails=1)
    job.produce([event(T0, key="k"), sent, event(T0 + 2, key="k")])
    job.run(drain=True)
    records = [
        TopicRecord(r.partition, r.offset, r.timestamp_ms, r.key, r.value, (*r.headers,))
        for r in job.dead_letters()
    ]
    letters = [*Selection().of(records)]
    folder = job.folder / REPLAYS_FOLDER
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
