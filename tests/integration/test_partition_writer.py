"""Rows and their commit token on a real broker: in one transaction, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined] # documented, but not in __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from sequitur._topic_reader import read_topic
from sequitur.consumer import CommitToken, CommitTokenError, OutputPartition, commits_group
from sequitur.pipelines._errors import (
    CheckpointError,
    TransactionError,
    TransactionFencedError,
    TransactionOutcomeError,
)
from sequitur.pipelines.kafka.commit_tokens import CommitTokens
from sequitur.pipelines.kafka.coordinators import Coordinators
from sequitur.pipelines.kafka.topics import KafkaTopics
from sequitur.pipelines.kafka.transaction import Transaction
from sequitur.pipelines.rows.record_layout import Headers, record_batches
from sequitur.pipelines.rows.run_writer import RUN_ARROW_SCHEMA
from sequitur.pipelines.sink.partition_writer import PartitionWriter
from sequitur.producer import KafkaSettings
from tests.support.brokers import POLL_S
from tests.support.document_folder import DocumentFolder
from tests.support.tokens import token_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sequitur.pipelines.rows.record_layout import KafkaBatch
    from tests.conftest import MakeBroker, MakeTopic
    from tests.support.brokers import Broker
    from tests.support.record_bytes import Header

_PARTITION = 2
_BATCH_ROWS = 64
_BASE_MS = 1_700_000_000_000
_TOKEN_TIMEOUT_S = 30.0


def _rows(*rows: tuple[bytes | None, bytes | None, tuple[Header, ...]]) -> pa.Table:
    keys, values, headers = zip(*rows, strict=True) if rows else ((), (), ())
    lists = [[{"key": name, "value": data} for name, data in own] for own in headers]
    columns = {"key": keys, "value": values, "headers": lists}
    fields = [RUN_ARROW_SCHEMA.field(name) for name in columns]
    return pa.table(columns, pa.schema(fields))


def _records(values: Iterable[bytes | None]) -> pa.Table:
    """Rows under one key."""
    return _rows(*((b"k", value, ()) for value in values))


def _numbered(count: int, *, of: str = "row") -> Iterator[pa.Table]:
    """As many rows, in some tables; an empty one is among them."""
    values: list[bytes | None] = [f"{of} {number}".encode() for number in range(count)]
    yield _records([])
    for start in range(0, count, _BATCH_ROWS):
        yield _records(values[start : start + _BATCH_ROWS])


@dataclass(frozen=True, slots=True)
class _Output:
    """An output topic of four partitions, and a job that writes to it."""

    kafka: KafkaSettings
    topic: str

    @property
    def app(self) -> str:
        return f"app-{self.topic}"

    def tokens(self, folder: DocumentFolder, **more: Any) -> CommitTokens:
        return CommitTokens(self.kafka, app=self.app, documents=folder, **more)

    def established(self) -> CommitTokens:
        """Tokens as a job finds them that is to begin its first step."""
        tokens = self.tokens(DocumentFolder())
        tokens.open({self.topic: 4}, newest=-1, done=-1)
        return tokens

    def writer(self, job: str | None, step: int = 0) -> PartitionWriter:
        return PartitionWriter(
            kafka=self.kafka,
            app=self.app,
            job=job,
            topic=self.topic,
            partitions=4,
            step=step,
            transaction_timeout_ms=60_000,
        )

    def write(
        self,
        job: str | None,
        rows: Iterable[pa.Table],
        step: int = 0,
        time_ms: int = _BASE_MS,
    ) -> int:
        """What a task does; how many rows it tells of."""

        def laid_out(limit: int) -> Iterator[KafkaBatch]:
            for some in rows:
                headers = Headers.of(some["headers"].combine_chunks())
                times = np.full(len(some), time_ms)
                yield from record_batches(some["key"], some["value"], headers, times, limit)

        count, _size = self.writer(job, step).send(_PARTITION, laid_out)
        return count

    def values(self) -> list[bytes | None]:
        """What a reader at read_committed gets of the partition."""
        return [r.value for r in read_topic(self.kafka, self.topic) if r.partition == _PARTITION]

    def token(self) -> CommitToken | None:
        return token_of(self.kafka, self.app, OutputPartition(self.topic, _PARTITION))

    def written_token(self, step: int) -> CommitToken | None:
        """The token once it is that of a step.

        A commit is answered when it is decided; the group's coordinator hears of it a moment later.
        """
        deadline = time.monotonic() + _TOKEN_TIMEOUT_S
        while True:
            token = self.token()
            if (token is not None and token.step == step) or time.monotonic() > deadline:
                return token
            time.sleep(POLL_S)

    def delete_tokens(self) -> None:
        """Lose all tokens, as when offsets expire."""
        admin = AdminClient(self.kafka.librdkafka())
        (deleted,) = admin.delete_consumer_groups([commits_group(self.app)]).values()
        deleted.result(30)

    def commit(self, offset: TopicPartition) -> None:
        """Commit an offset for a partition, as anybody may."""
        options = {**self.kafka.librdkafka(), "group.id": commits_group(self.app)}
        with contextlib.closing(Consumer(options)) as consumer:
            consumer.commit(offsets=[offset], asynchronous=False)


@pytest.fixture
def output(broker: Broker, topic: str) -> _Output:
    """An output topic of this test alone."""
    return _Output(KafkaSettings(bootstrap_servers=broker.bootstrap_servers), topic)


def _expected(count: int, *, of: str = "row") -> list[bytes]:
    return [f"{of} {number}".encode() for number in range(count)]


def test_rows_and_token_are_there_together(output: _Output) -> None:
    """What a task writes is in its partition in order, and the token tells of it."""
    job = output.established().job
    assert output.write(job, _numbered(100)) == 100
    assert output.values() == _expected(100)
    assert output.written_token(0) == CommitToken(job=job, step=0, rows=100, partitions=4)


def test_payloads_are_opaque(output: _Output) -> None:
    """Keys, values and headers arrive byte for byte; null stays null."""
    job = output.established().job
    rows: list[tuple[bytes | None, bytes | None, tuple[Header, ...]]] = [
        (b"", b"", ()),
        (None, None, ()),
        (b"\x80", b"\xff\x00", (("a", b"\xff\x00"), ("a", None), ("", b""))),
    ]
    assert output.write(job, [_rows(*rows)]) == 3
    found = list(read_topic(output.kafka, output.topic))
    assert [(record.key, record.value, record.headers) for record in found] == rows


def test_large_rows_are_cut_to_what_the_topic_takes(broker: Broker, make_topic: MakeTopic) -> None:
    """A batch is no larger than the topic's limit, whatever the rows measure."""
    topic = make_topic(max_message_bytes=20_000)
    output = _Output(KafkaSettings(bootstrap_servers=broker.bootstrap_servers), topic)
    job = output.established().job
    values: list[bytes | None] = [random.Random(n).randbytes(3000) for n in range(40)]
    assert output.write(job, [_records(values)]) == 40
    assert output.values() == values
    with pytest.raises(TransactionError, match="MESSAGE_TOO_LARGE"):
        output.write(job, [_records([random.Random(1).randbytes(30_000)])], step=1)
    assert output.values() == values


def test_limit_that_is_lowered_costs_one_attempt(broker: Broker, make_topic: MakeTopic) -> None:
    """What is refused as too large is cut anew by the next attempt, in the same process."""
    topic = make_topic()
    output = _Output(KafkaSettings(bootstrap_servers=broker.bootstrap_servers), topic)
    job = output.established().job
    values: list[bytes | None] = [random.Random(n).randbytes(500) for n in range(_BATCH_ROWS)]
    assert output.write(job, [_records(values)]) == _BATCH_ROWS
    _set_limit(output.kafka, topic, 5_000)
    with pytest.raises(TransactionError, match="MESSAGE_TOO_LARGE"):
        output.write(job, [_records(values)], step=1)
    assert output.write(job, [_records(values)], step=1) == _BATCH_ROWS
    assert output.values() == 2 * values


def _set_limit(kafka: KafkaSettings, topic: str, max_bytes: int) -> None:
    """Change a topic's `max.message.bytes`, and wait until its broker goes by it."""
    admin, name = AdminClient(kafka.librdkafka()), "max.message.bytes"
    resource = ConfigResource(ResourceType.TOPIC, topic)
    operation = AlterConfigOpType.SET
    resource.add_incremental_config(
        ConfigEntry(name, str(max_bytes), incremental_operation=operation)
    )
    admin.incremental_alter_configs([resource])[resource].result(30)
    while KafkaTopics(kafka).record_limit(topic).max_bytes != max_bytes:
        time.sleep(POLL_S)


def test_oldest_timestamps_that_are_given_are_taken(broker: Broker, make_topic: MakeTopic) -> None:
    """Records as old as the topic's limits allow by our rule are not past them on arrival."""
    topic = make_topic(message_timestamp_before_max_ms=3_600_000, retention_ms=-1)
    output = _Output(KafkaSettings(bootstrap_servers=broker.bootstrap_servers), topic)
    oldest_ms = KafkaTopics(output.kafka).timestamps(topic).oldest_ms
    assert oldest_ms is not None
    time_ms = time.time_ns() // 1_000_000 - oldest_ms
    output.write(output.established().job, [_records([b"old"])], time_ms=time_ms)
    assert output.values() == [b"old"]


def test_rows_without_a_token_are_there_in_order_and_again_when_repeated(output: _Output) -> None:
    """At least once: each attempt writes all of its rows, whatever was written before."""
    for _ in range(2):
        assert output.write(None, _numbered(1000)) == 1000
    assert output.values() == 2 * _expected(1000)
    assert output.token() is None


def test_repeated_step_writes_nothing_and_counts(output: _Output) -> None:
    """A step whose rows are there is left out and counted; the next one is written."""
    job = output.established().job
    for step in (0, 0, 1, 1):
        rows = _numbered(60, of=f"step {step}")
        assert output.write(job, rows, step) == 60
    assert output.values() == _expected(60, of="step 0") + _expected(60, of="step 1")


def test_task_without_rows_leaves_no_trace(output: _Output) -> None:
    """No rows: no transaction, and the token stays what it was."""
    job = output.established().job
    assert output.write(job, [_records([])], step=3) == 0
    assert output.token() == CommitToken(job=job, step=-1, rows=0, partitions=4)


def test_repeated_step_with_other_rows_is_refused(output: _Output) -> None:
    """A repeat that counts differently is not the same step: nobody's rows go missing for it."""
    job = output.established().job
    output.write(job, _numbered(100))
    with pytest.raises(CommitTokenError, match="holds 100 rows of step 0, and repeated it has 99"):
        output.write(job, _numbered(99))


def test_lost_or_foreign_token_stops_the_task(output: _Output) -> None:
    """Nothing is written where it is not known what is there."""
    with pytest.raises(CommitTokenError, match="has no commit token"):
        output.write("mine", _numbered(10))
    output.established()
    with pytest.raises(CommitTokenError, match="of another checkpoint"):
        output.write("mine", _numbered(10))
    output.commit(TopicPartition(output.topic, _PARTITION, 7))
    with pytest.raises(CommitTokenError, match=r"offset 7 with metadata .* is not a commit token"):
        output.write("mine", _numbered(10))
    assert output.values() == []


def test_older_attempt_is_fenced_by_a_newer_one(output: _Output) -> None:
    """A task that was given up while it wrote cannot commit: the newer attempt's rows count."""
    job = output.established().job

    def given_up() -> Iterator[pa.Table]:
        yield from _numbered(80)
        # The second attempt runs from start to end while the first one writes.
        assert output.write(job, _numbered(100)) == 100
        yield _records([b"zombie"])

    with pytest.raises(TransactionFencedError, match="fenced: a newer attempt"):
        output.write(job, given_up())
    assert output.values() == _expected(100)
    assert output.written_token(0) == CommitToken(job=job, step=0, rows=100, partitions=4)


def test_what_a_dead_attempt_left_open_is_not_read(output: _Output) -> None:
    """The next attempt ends the open transaction of one that died, and writes all rows anew."""
    job = output.established().job

    def dying() -> Iterator[pa.Table]:
        yield from _numbered(80)
        raise _DiedError

    with pytest.raises(_DiedError):
        output.write(job, dying())
    assert output.write(job, _numbered(100)) == 100
    assert output.values() == _expected(100)


class _DiedError(Exception):
    """The task dies here."""


@pytest.mark.parametrize("is_carried_out", [True, False])
def test_commit_without_an_answer_is_looked_up(
    output: _Output, monkeypatch: pytest.MonkeyPatch, is_carried_out: bool
) -> None:
    """The token says what became of it: the task is done, or fails and its repeat writes."""
    job = output.established().job
    real = Transaction.commit

    async def commit(transaction: Transaction, offset: int, metadata: str) -> None:
        if is_carried_out:
            await real(transaction, offset, metadata)
        raise TransactionOutcomeError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "commit", commit)
        if is_carried_out:
            assert output.write(job, _numbered(100)) == 100
        else:
            with pytest.raises(TransactionOutcomeError):
                output.write(job, _numbered(100))
            assert output.values() == []
    assert output.write(job, _numbered(100)) == 100
    assert output.values() == _expected(100)


@pytest.mark.either_broker
@pytest.mark.parametrize("is_once", [True, False])
def test_broker_that_restarts_costs_nothing(make_broker: MakeBroker, *, is_once: bool) -> None:
    """Batches and requests without an answer are sent again: the attempt outlives it.

    Or it fails by name, and the next one, as Spark runs it, makes it right: of the batches that a
    killed broker had appended and not answered, it knows again the last one alone, since it loads
    no more of a producer's from its snapshot.
    """
    broker = make_broker()
    output = _Output(KafkaSettings(bootstrap_servers=broker.bootstrap_servers), "restarted")
    create = NewTopic("restarted", num_partitions=4, replication_factor=1)
    admin = AdminClient(output.kafka.librdkafka())
    admin.create_topics([create])["restarted"].result(30)
    job = output.established().job if is_once else None

    def rows() -> Iterator[pa.Table]:
        for number, batch in enumerate(_numbered(1000)):
            if number == 8:
                broker.kill()
                broker.start()
            yield batch

    # Of older records a broker forgets who sent them, but in a transaction.
    now_ms = time.time_ns() // 1_000_000
    refused = None
    try:
        written = output.write(job, rows(), time_ms=now_ms)
    except TransactionError as error:
        refused = str(error)
        written = output.write(job, _numbered(1000), time_ms=now_ms)
    assert refused is None or "OUT_OF_ORDER_SEQUENCE_NUMBER" in refused
    assert written == 1000
    found = output.values()
    assert found[-1000:] == _expected(1000)
    # In a transaction nothing of a failed attempt is seen; without one, what it has written.
    assert found[:-1000] == ([] if is_once else _expected(len(found) - 1000))
    if is_once:
        assert output.write(job, _numbered(1000)) == 1000
        assert output.values() == _expected(1000)


def test_tokens_are_kept_from_expiring(output: _Output) -> None:
    """Each hour the driver commits all tokens anew: those that are there keep what they say."""
    now_s = [0.0]
    tokens = output.tokens(DocumentFolder(), clock=lambda: now_s[0])
    tokens.open({output.topic: 4}, newest=-1, done=-1)
    output.write(tokens.job, _numbered(10))
    written = output.written_token(0)
    now_s[0] = 3600.0
    tokens.step_is_done(0)
    assert output.token() == written == CommitToken(tokens.job, step=0, rows=10, partitions=4)
    output.delete_tokens()
    now_s[0] = 7199.0
    tokens.step_is_done(1)
    assert output.token() is None
    now_s[0] = 7200.0
    tokens.step_is_done(1)
    assert output.token() == CommitToken(tokens.job, step=1, rows=0, partitions=4)


@pytest.mark.parametrize("paused_at", [1, 2])
def test_driver_thought_dead_puts_no_old_token_over_a_newer_one(
    output: _Output, monkeypatch: pytest.MonkeyPatch, paused_at: int
) -> None:
    """It is paused between reading a token and renewing it; meanwhile a newer driver goes on."""
    now_s = [0.0]
    older = output.tokens(DocumentFolder(), clock=lambda: now_s[0])
    older.open({output.topic: 4}, newest=-1, done=-1)
    output.write(older.job, _numbered(10))
    real, reads = Coordinators.offsets, []

    async def offsets(coordinators: Coordinators, group: str, partitions: Any) -> Any:
        wanted = list(partitions)
        found = await real(coordinators, group, wanted)
        if OutputPartition(output.topic, _PARTITION) in wanted:
            reads.append(wanted)
            if len(reads) == paused_at:
                await asyncio.to_thread(output.write, older.job, _numbered(20), 1)
        return found

    monkeypatch.setattr(Coordinators, "offsets", offsets)
    now_s[0] = 3600.0
    with pytest.raises(CommitTokenError, match="and the checkpoint has got to step 0"):
        older.step_is_done(0)
    assert output.written_token(1) == CommitToken(older.job, step=1, rows=20, partitions=4)


def test_lost_tokens_are_mended_between_steps_and_refused_within_one(output: _Output) -> None:
    """Tokens that expired while the job was away are committed anew, unless a step is open."""
    folder = DocumentFolder()
    output.tokens(folder).open({output.topic: 4}, newest=-1, done=-1)
    output.delete_tokens()
    tokens = output.tokens(folder)
    with pytest.raises(CommitTokenError, match="has no commit token"):
        tokens.open({output.topic: 4}, newest=5, done=4)
    tokens.open({output.topic: 4}, newest=4, done=4)
    tokens.open({output.topic: 4}, newest=5, done=4)
    assert output.token() == CommitToken(tokens.job, step=4, rows=0, partitions=4)


def test_checkpoint_keeps_to_its_app(output: _Output) -> None:
    """Under another name the tokens would not be found, and rows would double: it is refused."""
    folder = DocumentFolder()
    output.tokens(folder)
    with pytest.raises(CheckpointError, match="belongs to a job with app = 'app-"):
        CommitTokens(output.kafka, app="other", documents=folder)
    folder.documents["delivery.json"]["format"] = 2
    with pytest.raises(CheckpointError, match="it has format 2; this version reads 1"):
        output.tokens(folder)
