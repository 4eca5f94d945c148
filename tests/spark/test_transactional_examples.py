"""The transactional examples as their users run them: Spark, a broker, and PostgreSQL."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from sequitur.consumer.topology import ProcessSettings
from tests.spark.submitted_job import SubmittedJob
from tests.support.events import T0, Event
from tests.support.output_reading import read_output
from tests.support.postgres import PASSWORD_USER, PostgresServer
from tests.support.tree import EXAMPLES
from tests.support.word_states import check_records, check_tables, committed_by, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import MakeTopic
    from tests.spark.conftest import Job

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.one_process,
    pytest.mark.test_all,
]  # starts Spark

_SENTENCES = ("to be or not to be", "that is the question", "to do is to be", "be " * 25)


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty database whose user has a password; both are in the job's environment."""
    with PostgresServer() as server:
        server.sql(f"CREATE ROLE {PASSWORD_USER} LOGIN PASSWORD 'known to the test'")
        server.sql(f"CREATE DATABASE counts OWNER {PASSWORD_USER}")
        monkeypatch.setenv("STATE_URL", server.url("counts", PASSWORD_USER))
        monkeypatch.setenv("STATE_PASSWORD", "known to the test")
        yield server.url("counts")


def _runs(job: Job, example: Path, *lives: int) -> None:
    """Run an example in lives one after the other, each on so many more sentences."""
    sent = 0
    for events in lives:
        job.produce(
            Event(
                value=_SENTENCES[number % len(_SENTENCES)].encode(),
                key=f"page {number % 7}".encode(),
                timestamp_ms=T0 + 1_000 * number,
            )
            for number in range(sent, sent + events)
        )
        sent += events
        words = ("--available-now", "--drain")
        with SubmittedJob(
            job.kafka, job.settings, *words, topology=example, process=ProcessSettings()
        ) as life:
            life.end()


def test_words_runs_as_its_text_says(
    job: Job, database: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Both tables are right after a restart, and each batch is in both topics once.

    A sentence with a word that no state holds is a dead letter, and stops nothing.
    """
    example, topics = tmp_path / "my_words.py", (make_topic(), make_topic())
    text = (EXAMPLES / "transactional_words.py").read_text()
    for name, topic in zip(("word-counts", "word-buckets"), topics, strict=True):
        assert f'topic="{name}"' in text
        text = text.replace(f'topic="{name}"', f'topic="{topic}"')
    example.write_text(text)
    job = job.with_settings(event_time="kafka-timestamp")
    job.produce([Event(value=b"ok a\0b", key=b"page 3", timestamp_ms=T0 + 5_500)])
    _runs(job, example, 40, 24)
    (letter,) = read_output(job.kafka, ProcessSettings().dead_letters(job.settings.output_topic))
    assert letter.value == b"ok a\0b"
    words = Counter(word for sentence in _SENTENCES for word in sentence.split())
    check_tables(database, {word: 16 * count for word, count in words.items()})
    counts, buckets = ([(r.key, r.value) for r in read_output(job.kafka, t)] for t in topics)
    batches = check_records(database, counts, buckets)
    committed = committed_by(database, "words")
    assert set(committed) == {"count", "bucket"}
    assert committed["count"] == committed["bucket"] >= max(batches)
    assert len(batches) > 1


def test_global_count_runs_as_its_text_says(
    job: Job, database: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """The count is right, and each batch is in the topic once, under its id."""
    example, topic = tmp_path / "my_count.py", make_topic()
    text = (EXAMPLES / "transactional_global_count.py").read_text()
    assert 'topic="global-count"' in text
    example.write_text(text.replace('topic="global-count"', f'topic="{topic}"'))
    _runs(job.with_settings(event_time="kafka-timestamp"), example, 50)
    found = {
        json.loads(record.key or b""): json.loads(record.value or b"")
        for record in read_output(job.kafka, topic)
    }
    newest = max(found)
    assert len(read_output(job.kafka, topic)) == len(found) == newest
    assert [found[batch] for batch in sorted(found)] == sorted(found.values())
    ((value, _, txid),) = rows_of(database, "global_count").values()
    assert (value, txid) == (50, newest) == (found[newest], newest)
    assert committed_by(database, "global-count") == {"sum": newest}
