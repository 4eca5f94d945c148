"""Rows and their commit token on a real broker: in one transaction, or not at all."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from consumer import CommitToken, CommitTokenError, OutputPartition
from pipelines._commit_tokens import CommitTokens
from pipelines._committed_tokens import committed_tokens, token_consumer_options
from pipelines._errors import CheckpointError
from pipelines._partition_writer import PartitionWriter
from producer import KafkaSettings
from sequitur._topic_reader import read_topic
from tests.document_folder import DocumentFolder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.brokers import Broker

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("headers", _HEADERS)])
_PARTITION = 2


def _batch(values: Iterable[bytes | None], headers: Any = None) -> pa.RecordBatch:
    rows = [{"key": b"k", "value": value, "headers": headers} for value in values]
    return pa.RecordBatch.from_pylist(rows, _SCHEMA)


def _numbered(count: int, *, of: str = "row") -> Iterator[pa.RecordBatch]:
    """As many rows, some to a batch; an empty batch is among them."""
    values = [f"{of} {number}".encode() for number in range(count)]
    yield _batch([])
    for start in range(0, count, 40):
        yield _batch(values[start : start + 40])


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

    def consumer_options(self) -> dict[str, Any]:
        return token_consumer_options(self.kafka, self.app)

    def writer(self, job: str, step: int = 0) -> PartitionWriter:
        return PartitionWriter(
            producer_options=self.kafka.librdkafka(),
            consumer_options=self.consumer_options(),
            app=self.app,
            job=job,
            topic=self.topic,
            partitions=4,
            step=step,
        )

    def values(self) -> list[bytes | None]:
        """What a reader at read_committed gets of the partition."""
        return [r.value for r in read_topic(self.kafka, self.topic) if r.partition == _PARTITION]

    def token(self) -> CommitToken | None:
        where = OutputPartition(self.topic, _PARTITION)
        with contextlib.closing(Consumer(self.consumer_options())) as consumer:
            return committed_tokens(consumer, [where])[where]

    def delete_tokens(self) -> None:
        """Lose all tokens, as when offsets expire."""
        admin = AdminClient(self.kafka.librdkafka())
        (deleted,) = admin.delete_consumer_groups([f"{self.app}.commits"]).values()
        deleted.result(30)

    def commit(self, offset: TopicPartition) -> None:
        """Commit an offset for a partition, as anybody may."""
        with contextlib.closing(Consumer(self.consumer_options())) as consumer:
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
    assert output.writer(job).write(_PARTITION, _numbered(100)) == 100
    assert output.values() == _expected(100)
    assert output.token() == CommitToken(job=job, step=0, rows=100, partitions=4)


def test_payloads_are_opaque(output: _Output) -> None:
    """Keys, values and headers arrive byte for byte; null stays null."""
    job = output.established().job
    headers = [
        {"key": "a", "value": b"\xff\x00"},
        {"key": "a", "value": None},
        {"key": "", "value": b""},
    ]
    plain, rich = _batch([b"", None, b"\x80"]), _batch([b"v"], headers)
    assert output.writer(job).write(_PARTITION, iter([plain, rich])) == 4
    found = list(read_topic(output.kafka, output.topic))
    assert [record.value for record in found] == [b"", None, b"\x80", b"v"]
    assert [record.headers for record in found] == [
        (),
        (),
        (),
        (("a", b"\xff\x00"), ("a", None), ("", b"")),
    ]


def test_repeated_step_writes_nothing_and_counts(output: _Output) -> None:
    """A step whose rows are there is left out and counted; the next one is written."""
    job = output.established().job
    for step in (0, 0, 1, 1):
        rows = _numbered(60, of=f"step {step}")
        assert output.writer(job, step).write(_PARTITION, rows) == 60
    assert output.values() == _expected(60, of="step 0") + _expected(60, of="step 1")


def test_task_without_rows_leaves_no_trace(output: _Output) -> None:
    """No rows: no transaction, and the token stays what it was."""
    job = output.established().job
    assert output.writer(job, step=3).write(_PARTITION, iter([_batch([])])) == 0
    assert output.token() == CommitToken(job=job, step=-1, rows=0, partitions=4)


def test_repeated_step_with_other_rows_is_refused(output: _Output) -> None:
    """A repeat that counts differently is not the same step: nobody's rows go missing for it."""
    job = output.established().job
    output.writer(job).write(_PARTITION, _numbered(100))
    with pytest.raises(CommitTokenError, match="holds 100 rows of step 0, and repeated it has 99"):
        output.writer(job).write(_PARTITION, _numbered(99))


def test_lost_or_foreign_token_stops_the_task(output: _Output) -> None:
    """Nothing is written where it is not known what is there."""
    with pytest.raises(CommitTokenError, match="has lost its commit token"):
        output.writer("mine").write(_PARTITION, _numbered(10))
    output.established()
    with pytest.raises(CommitTokenError, match="of another checkpoint"):
        output.writer("mine").write(_PARTITION, _numbered(10))
    output.commit(TopicPartition(output.topic, _PARTITION, 7))
    with pytest.raises(CommitTokenError, match=r"offset 7 with metadata .* is not a commit token"):
        output.writer("mine").write(_PARTITION, _numbered(10))
    assert output.values() == []


def test_older_attempt_is_fenced_by_a_newer_one(output: _Output) -> None:
    """A task that was given up while it wrote cannot commit: the newer attempt's rows count."""
    job = output.established().job

    def given_up() -> Iterator[pa.RecordBatch]:
        yield from _numbered(80)
        # The second attempt runs from start to end while the first one writes.
        assert output.writer(job).write(_PARTITION, _numbered(100)) == 100
        yield _batch([b"zombie"])

    with pytest.raises(KafkaException, match=r"(?i)fenced|epoch"):
        output.writer(job).write(_PARTITION, given_up())
    assert output.values() == _expected(100)
    assert output.token() == CommitToken(job=job, step=0, rows=100, partitions=4)


def test_what_a_dead_attempt_left_open_is_not_read(output: _Output) -> None:
    """The next attempt ends the open transaction of one that died, and writes all rows anew."""
    job = output.established().job

    def dying() -> Iterator[pa.RecordBatch]:
        yield from _numbered(80)
        raise _DiedError

    with pytest.raises(_DiedError):
        output.writer(job).write(_PARTITION, dying())
    assert output.writer(job).write(_PARTITION, _numbered(100)) == 100
    assert output.values() == _expected(100)


class _DiedError(Exception):
    """The task dies here."""


class _Forgetful:
    """A producer whose answer to the commit is lost."""

    def __init__(self, options: dict[str, Any], *, carries_it_out: bool) -> None:
        self._real = Producer(options)
        self._carries_it_out = carries_it_out

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def commit_transaction(self) -> None:
        if self._carries_it_out:
            self._real.commit_transaction()
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def test_lost_answer_to_a_commit_is_looked_up(output: _Output) -> None:
    """The commit was carried out, its answer got lost: the token says so, and the task is done."""
    job = output.established().job
    writer = replace(
        output.writer(job), make_producer=lambda options: _Forgetful(options, carries_it_out=True)
    )
    assert writer.write(_PARTITION, _numbered(100)) == 100
    assert output.writer(job).write(_PARTITION, _numbered(100)) == 100
    assert output.values() == _expected(100)


def test_commit_that_was_not_carried_out_is_an_error(output: _Output) -> None:
    """The commit got lost itself: the task fails, nothing is visible, and its repeat writes."""
    job = output.established().job
    writer = replace(
        output.writer(job), make_producer=lambda options: _Forgetful(options, carries_it_out=False)
    )
    with pytest.raises(KafkaException):
        writer.write(_PARTITION, _numbered(100))
    assert output.values() == []
    assert output.writer(job).write(_PARTITION, _numbered(100)) == 100
    assert output.values() == _expected(100)


def test_tokens_are_kept_from_expiring(output: _Output) -> None:
    """Each hour the driver commits all tokens anew: those that are there keep what they say."""
    now_s = [0.0]
    tokens = output.tokens(DocumentFolder(), clock=lambda: now_s[0])
    tokens.open({output.topic: 4}, newest=-1, done=-1)
    output.writer(tokens.job).write(_PARTITION, _numbered(10))
    written = output.token()
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


def test_lost_tokens_are_mended_between_steps_and_refused_within_one(output: _Output) -> None:
    """Tokens that expired while the job was away are committed anew, unless a step is open."""
    folder = DocumentFolder()
    output.tokens(folder).open({output.topic: 4}, newest=-1, done=-1)
    output.delete_tokens()
    tokens = output.tokens(folder)
    with pytest.raises(CommitTokenError, match="has lost its commit token"):
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
    with pytest.raises(CheckpointError, match=r"delivery.json has format 2; this version reads 1"):
        output.tokens(folder)
