"""The rows of a step on a real broker: once and in order, whatever becomes of those who send."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined] # documented, but not in __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from sequitur.errors import FencedError, OutputMismatchError, SendRefusedError
from sequitur.kafka.admin import KafkaTopics
from sequitur.kafka.record_format import MAX_SEQUENCE
from sequitur.pipelines.sink import block_writer
from sequitur.producer import KafkaSettings
from tests.support.brokers import POLL_S
from tests.support.faulty_wire import FaultyWire, faulty_wires
from tests.support.job_output import (
    BATCH_ROWS,
    JobOutput,
    Life,
    another_process,
    expected,
    laid_out,
    numbered,
    records_of,
    rows_of,
)
from tests.support.output_reading import read_output
from tests.support.values import replace
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from tests.conftest import MakeBroker, MakeTopic
    from tests.support.brokers import Broker
    from tests.support.job_output import Tables
    from tests.support.record_bytes import Header

_PARTITION = 2
_ROUNDS = 6
_ATTEMPTS = 3
_ROUND_ROWS = 2000
_DEATHS_AT_MOST = 8


@pytest.fixture
def output(broker: Broker, topic: str) -> JobOutput:
    return JobOutput(KafkaSettings(bootstrap_servers=broker.bootstrap_servers), topic)


@pytest.fixture
def _as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have rows sent as they come, not some megabytes at a time."""
    monkeypatch.setattr(block_writer, "_GIVEN_AT_ONCE", 1)
    monkeypatch.setattr(block_writer, "_MOST_WAITING", 0)


def _write(
    life: Life,
    tables: Tables,
    step: int = 0,
    *,
    kafka: KafkaSettings | None = None,
    time_ms: int | None = None,
) -> int:
    """What a task does that writes to one partition; how many rows it tells of."""
    rows = [(_PARTITION, laid_out(tables, time_ms))]
    return life.task(step, kafka).write(rows).get(_PARTITION, 0)


def test_rows_are_there_in_order_and_counted(output: JobOutput) -> None:
    """What a task writes is in its partitions, in order, under the sequences of its plan."""
    life = output.life()
    rows = [(one, laid_out(numbered(100 + one, of=f"p{one}"))) for one in range(4)]
    assert life.task().write(rows) == {one: 100 + one for one in range(4)}
    for one in range(4):
        assert output.values(one) == expected(100 + one, of=f"p{one}")
    plan = life.planned().plan.topics[output.topic]
    assert plan.firsts == plan.ends == (0, 0, 0, 0)
    life.finish(0, {one: 100 + one for one in range(4)})
    assert life.planned(1).plan.topics[output.topic].firsts == (100, 101, 102, 103)
    assert life.planned(1).plan.topics[output.topic].ends == (100, 101, 102, 103)


@pytest.mark.promise("order-keys-values-headers")
def test_payloads_are_opaque(output: JobOutput) -> None:
    """Keys, values and headers arrive byte for byte; null stays null."""
    rows: list[tuple[bytes | None, bytes | None, tuple[Header, ...]]] = [
        (b"", b"", ()),
        (None, None, ()),
        (b"\x80", b"\xff\x00", (("a", b"\xff\x00"), ("a", None), ("", b""))),
    ]
    assert _write(output.life(), [rows_of(*rows)]) == 3
    found = read_output(output.kafka, output.topic)
    assert [(record.key, record.value, record.headers) for record in found] == rows


def test_large_rows_are_cut_to_what_the_topic_takes(broker: Broker, make_topic: MakeTopic) -> None:
    """A batch is no larger than the topic's limit; a row that is larger waits until it is taken."""
    topic = make_topic(max_message_bytes=20_000)
    output = JobOutput(KafkaSettings(bootstrap_servers=broker.bootstrap_servers), topic)
    life = output.life()
    values: list[bytes | None] = [random.Random(n).randbytes(3000) for n in range(40)]
    assert _write(life, [records_of(values)]) == 40
    assert output.values(_PARTITION) == values
    life.finish(0, {_PARTITION: 40})
    large: list[bytes | None] = [b"before", random.Random(1).randbytes(30_000), b"behind"]
    for _ in range(2):
        with pytest.raises(SendRefusedError, match="MESSAGE_TOO_LARGE"):
            _write(life, [records_of([value]) for value in large], step=1)
    # Nothing behind it may pass it, and nothing gets another sequence than it had.
    found = output.values(_PARTITION)
    assert found in (values, [*values, b"before"])
    _set_limit(output.kafka, topic, 50_000)
    assert _write(life, [records_of([value]) for value in large], step=1) == 3
    assert output.values(_PARTITION) == values + large


@pytest.mark.promise("order-max-message-bytes")
def test_limit_that_is_lowered_costs_one_attempt(broker: Broker, make_topic: MakeTopic) -> None:
    """What is refused as too large is cut anew by the next attempt, under the same sequences."""
    topic = make_topic()
    output = JobOutput(KafkaSettings(bootstrap_servers=broker.bootstrap_servers), topic)
    life = output.life()
    values: list[bytes | None] = [random.Random(n).randbytes(500) for n in range(BATCH_ROWS)]
    assert _write(life, [records_of(values)]) == BATCH_ROWS
    life.finish(0, {_PARTITION: BATCH_ROWS})
    life.planned(1)
    _set_limit(output.kafka, topic, 5_000)
    with pytest.raises(SendRefusedError, match="MESSAGE_TOO_LARGE"):
        _write(life, [records_of(values)], step=1)
    assert _write(life, [records_of(values)], step=1) == BATCH_ROWS
    assert output.values(_PARTITION) == 2 * values


def _set_limit(kafka: KafkaSettings, topic: str, max_bytes: int) -> None:
    """Change a topic's `max.message.bytes`, and wait until its broker goes by it."""
    admin, name = AdminClient(kafka.librdkafka()), "max.message.bytes"
    resource = ConfigResource(ResourceType.TOPIC, topic)
    operation = AlterConfigOpType.SET
    resource.add_incremental_config(
        ConfigEntry(name, str(max_bytes), incremental_operation=operation)
    )
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
    while KafkaTopics(kafka).record_limit(topic).max_bytes != max_bytes:
        time.sleep(POLL_S)


@pytest.mark.promise("order-backfill-years-ago")
def test_oldest_timestamps_that_are_given_are_taken(broker: Broker, make_topic: MakeTopic) -> None:
    """Records as old as the topic's limits allow by our rule are not past them on arrival."""
    topic = make_topic(message_timestamp_before_max_ms=3_600_000, retention_ms=-1)
    output = JobOutput(KafkaSettings(bootstrap_servers=broker.bootstrap_servers), topic)
    oldest_ms = KafkaTopics(output.kafka).timestamps(topic).oldest_ms
    assert oldest_ms is not None
    time_ms = time.time_ns() // 1_000_000 - oldest_ms
    _write(output.life(), [records_of([b"old"])], time_ms=time_ms)
    assert output.values(_PARTITION) == [b"old"]


@pytest.mark.promise("order-job-dies-output")
def test_repeated_step_writes_nothing_and_counts(output: JobOutput) -> None:
    """A step whose rows are there is left out and counted; the next one is written."""
    life = output.life()
    for step in (0, 0, 1, 1):
        rows = numbered(60, of=f"step {step}")
        assert _write(life, rows, step) == 60
        life.finish(step, {_PARTITION: 60})
    assert output.values(_PARTITION) == expected(60, of="step 0") + expected(60, of="step 1")


def test_repeat_that_is_cut_otherwise_writes_nothing(output: JobOutput) -> None:
    """No batch of it is one that the broker has seen: it is read what readers see."""
    life = output.life()
    rows = [records_of([value]) for value in expected(50)]
    assert _write(life, rows) == 50
    assert _write(life, [records_of(expected(50))]) == 50
    assert _write(life, numbered(50, batch_rows=7)) == 50
    assert output.values(_PARTITION) == expected(50)


def test_task_without_rows_leaves_no_trace(output: JobOutput) -> None:
    """No rows: nothing is sent, and the next step's first row has the sequence that is next."""
    life = output.life()
    assert _write(life, [records_of([])]) == 0
    life.finish(0, {})
    assert read_output(output.kafka, output.topic) == []
    assert _write(life, numbered(10), step=1) == 10
    assert output.values(_PARTITION) == expected(10)


@pytest.mark.promise("order-step-run-fewer")
def test_repeated_step_with_fewer_rows_is_refused(output: JobOutput) -> None:
    """A repeat that counts differently is not the same step: nobody's rows go missing for it."""
    life = output.life()
    _write(life, numbered(100))
    with pytest.raises(OutputMismatchError, match="holds 100 rows of the step, and it has 99"):
        _write(life, numbered(99))
    assert output.values(_PARTITION) == expected(100)


@pytest.mark.promise("order-attempts-task-run")
@pytest.mark.usefixtures("_as_they_come")
def test_older_attempt_goes_on_beside_a_newer_one(output: JobOutput) -> None:
    """A task that was given up while it wrote: whoever sends a row, it is there once."""
    life = output.life()

    def given_up() -> Iterator[pa.Table]:
        for number, table in enumerate(numbered(500)):
            if number == 4:
                # The second attempt, cut otherwise, runs from start to end while this one writes.
                newer = numbered(500, batch_rows=11)
                kafka = another_process(output.kafka)
                with ThreadPoolExecutor(1) as pool:
                    assert pool.submit(_write, life, newer, kafka=kafka).result(PATIENCE_S) == 500
            yield table

    assert _write(life, given_up()) == 500
    assert output.values(_PARTITION) == expected(500)


@pytest.mark.promise("order-task-dies-sends")
@pytest.mark.usefixtures("_as_they_come")
def test_next_attempt_goes_on_where_a_dead_one_was(output: JobOutput) -> None:
    """What it had sent, and what was on its way, counts; the rest is written."""
    life = output.life()

    def dying() -> Iterator[pa.Table]:
        for number, table in enumerate(numbered(500)):
            yield table
            if number == 4:
                raise _DiedError

    with pytest.raises(_DiedError):
        _write(life, dying())
    begun = output.values(_PARTITION)
    assert begun
    assert begun == expected(500)[: len(begun)]
    assert _write(life, numbered(500)) == 500
    assert output.values(_PARTITION) == expected(500)


class _DiedError(Exception):
    """The task dies here."""


@pytest.mark.test_all
@pytest.mark.promise("order-answers-brokers-lost", "order-attempts-task-run")
@pytest.mark.usefixtures("_as_they_come")
@pytest.mark.parametrize("seed", range(_ROUNDS))
def test_attempts_at_once_over_bad_connections_write_each_row_once(
    output: JobOutput, seed: int
) -> None:
    """Attempts that die and are repeated, three at a time, each cutting its rows its own way."""
    life = output.life()
    planned = life.planned()  # one of them takes it that nothing can be out: it may be wrong

    def attempt(number: int) -> int:
        chance = random.Random(f"{seed} {number}")
        kafka = another_process(output.kafka, number)
        for _ in range(_DEATHS_AT_MOST):
            rows = numbered(_ROUND_ROWS, batch_rows=chance.randrange(1, 200))
            try:
                return _write(life, _until_death(rows, chance), kafka=kafka)
            except _DiedError:
                continue
        return _write(life, numbered(_ROUND_ROWS), kafka=kafka)

    with faulty_wires(seed), ThreadPoolExecutor(_ATTEMPTS) as pool:
        assert list(pool.map(attempt, range(_ATTEMPTS))) == [_ROUND_ROWS] * _ATTEMPTS
        assert FaultyWire.happened > 0
    assert planned.begun_s is not None
    assert output.values(_PARTITION) == expected(_ROUND_ROWS)


def _until_death(tables: Tables, chance: random.Random) -> Iterator[pa.Table]:
    for table in tables:
        if chance.random() < 0.03:
            raise _DiedError
        yield table


@pytest.mark.test_all
@pytest.mark.promise("order-answers-brokers-lost")
@pytest.mark.either_broker
@pytest.mark.usefixtures("_as_they_come")
def test_broker_that_restarts_costs_nothing(make_broker: MakeBroker) -> None:
    """It is killed while rows are written: batches without an answer are asked for, then sent."""
    broker = make_broker()
    output = JobOutput(KafkaSettings(bootstrap_servers=broker.bootstrap_servers), "restarted")
    create = NewTopic("restarted", num_partitions=4, replication_factor=1)
    admin = AdminClient(output.kafka.librdkafka())
    admin.create_topics([create])["restarted"].result(PATIENCE_S)
    life = output.life()

    def rows() -> Iterator[pa.Table]:
        for number, table in enumerate(numbered(1000)):
            if number == 8:
                broker.kill()
                broker.start()
            yield table

    assert _write(life, rows()) == 1000
    assert output.values(_PARTITION) == expected(1000)
    assert _write(life, numbered(1000)) == 1000
    assert output.values(_PARTITION) == expected(1000)


@pytest.mark.promise("in-sequence-goes-negative")
def test_sequences_go_from_the_largest_to_zero(output: JobOutput) -> None:
    """2^31 - 1 is followed by 0, within a batch, too."""
    life = output.life()
    planned = life.planned()
    (topic_plan,) = planned.plan.topics.values()
    firsts = (0, 0, MAX_SEQUENCE - 100, 0)
    for begun_s in (planned.begun_s, None):
        task = replace(life.task(), plan=replace(topic_plan, firsts=firsts), begun_s=begun_s)
        assert task.write([(_PARTITION, laid_out(numbered(300)))]) == {_PARTITION: 300}
    assert output.values(_PARTITION) == expected(300)


def test_first_step_goes_behind_what_others_have_written(output: JobOutput) -> None:
    """A partition that is not empty: their rows stay as they are, ours follow."""
    others = Producer({**output.kafka.librdkafka(), "enable.idempotence": True})
    for value in expected(10, of="foreign"):
        others.produce(output.topic, value, partition=_PARTITION)
    assert others.flush(PATIENCE_S) == 0
    life = output.life()

    def meanwhile() -> Iterator[pa.Table]:
        yield from numbered(100)
        others.produce(output.topic, b"last", partition=_PARTITION)
        assert others.flush(PATIENCE_S) == 0

    assert _write(life, meanwhile()) == 100
    assert _write(life, numbered(100)) == 100
    found = output.values(_PARTITION)
    assert [one for one in found if one != b"last"] == [*expected(10, of="foreign"), *expected(100)]
    assert found.count(b"last") == 1


@pytest.mark.promise("order-driver-thought-dead")
def test_driver_thought_dead_goes_on_and_doubles_nothing(output: JobOutput) -> None:
    """Its tasks and the newer driver's finish the step it began; behind it they are refused."""
    older = output.life()
    assert _write(older, numbered(500, batch_rows=20)) == 500
    newer = older.next(newest=0)
    kafka = another_process(output.kafka)

    def paused() -> Iterator[pa.Table]:
        for number, table in enumerate(numbered(500)):
            if number == 4:
                with ThreadPoolExecutor(1) as pool:
                    assert (
                        pool.submit(_write, newer, numbered(500), kafka=kafka).result(PATIENCE_S)
                        == 500
                    )
            yield table

    assert _write(older, paused()) == 500
    assert output.values(_PARTITION) == expected(500)
    epoch = newer.planned(0).plan.identity.epoch
    newer.finish(0, {_PARTITION: 500})
    assert newer.planned(1).plan.identity.epoch == epoch + 1
    assert newer.planned(1).plan.topics[output.topic].firsts == (0, 0, 0, 0)
    assert _write(newer, numbered(30, of="next"), step=1) == 30
    for begun_s in (time.time(), None):
        task = replace(older.task(), begun_s=begun_s)
        with pytest.raises(FencedError, match="a newer process"):
            task.write([(_PARTITION, laid_out(numbered(500)))])
    assert output.values(_PARTITION) == expected(500) + expected(30, of="next")
