"""A topology behind the reorder stage, on a real broker and real Spark."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from tests.spark import bolts
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
