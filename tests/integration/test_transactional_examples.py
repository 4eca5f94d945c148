"""The transactional examples on both databases: counts are right, whatever is repeated."""

from __future__ import annotations

import sys
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, text

from sequitur import FailBatch, TransactionTester
from sequitur.pipelines.topology.topology_file import load_topology
from tests.support.postgres import PostgresServer
from tests.support.tree import EXAMPLES
from tests.support.word_states import check_records, check_tables, committed_by, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.one_process

_VOCABULARY = [f"word{number}" for number in range(60)]


def _module(name: str) -> Any:
    load_topology(EXAMPLES / f"{name}.py")
    return sys.modules[name]


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/state.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    name = f"example_{tmp_path.name.lower().translate(str.maketrans('-[]', '___'))}"
    server.sql(f"CREATE DATABASE {name}")
    return server.url(name)


def _sentences(random: Random, number: int) -> list[tuple[str, str]]:
    return [
        (f"page {random.randrange(9)}", " ".join(random.choices(_VOCABULARY, k=8)))
        for _ in range(number)
    ]


def test_global_count_writes_once_a_batch(url: str) -> None:
    """A thousand events cost one update of one row; the record has the batch's id."""
    tester = TransactionTester(_module("transactional_global_count").build(url), partitions=3)
    for events in (1_000, 1, 500):
        tester.run([(f"k{number}", "event") for number in range(events)])
    assert tester.records("counts") == [(b"1", b"1000"), (b"2", b"1001"), (b"3", b"1501")]
    assert rows_of(url, "global_count") == {"all": (1501, 1001, 3)}
    tester.close()


def test_global_count_is_written_by_one_statement(tmp_path: Path) -> None:
    """The database itself counts the writes of the row."""
    url = f"sqlite:///{tmp_path}/state.db"
    tester = TransactionTester(_module("transactional_global_count").build(url), partitions=3)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE writes (count INTEGER)"))
        for when in ("INSERT", "UPDATE"):
            connection.execute(
                text(
                    f"CREATE TRIGGER seen_{when} AFTER {when} ON global_count "
                    "BEGIN INSERT INTO writes VALUES (new.value); END"
                )
            )
    for _ in range(3):
        tester.run([(f"k{number}", "event") for number in range(1_000)])
    with engine.connect() as connection:
        seen = connection.execute(text("SELECT count FROM writes")).scalars().all()
    engine.dispose()
    assert seen == [1_000, 2_000, 3_000]
    tester.close()


@pytest.mark.test_all
def test_words_and_their_buckets_fit_a_plain_count(url: str) -> None:
    """After each of many batches, over two lives, and with a batch that brings nothing."""
    build = _module("transactional_words").build
    random, plain, counts, buckets = Random(7), Counter[str](), [], []
    tester = TransactionTester(build(url), partitions=3)
    for batch in range(1, 13):
        if batch == 7:
            tester.close()
            tester = TransactionTester(build(url), partitions=3, resumes_after=batch - 1)
        sentences = _sentences(random, 0 if batch == 5 else 20)
        plain.update(word for _, sentence in sentences for word in sentence.split())
        tester.run(sentences)
        check_tables(url, plain)
        if batch in {6, 12}:
            counts += tester.records("counts")
            buckets += tester.records("buckets")
    tester.close()
    assert check_records(url, counts, buckets) == {*range(1, 13)} - {5}
    assert committed_by(url, "words") == {"count": 12, "bucket": 12}


@pytest.mark.test_all
@pytest.mark.parametrize("bolt", ["CountPart", "CountWords", "Bucketize", "CountBuckets"])
def test_words_are_counted_once_whatever_fails(
    url: str, bolt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each bolt fails every other try: before anything is written, and behind what is."""
    module = _module("transactional_words")
    failing, calls = getattr(module, bolt), iter(range(1_000_000))
    finish = failing.finish_batch

    def fails_at_first(self: Any) -> None:
        finish(self)
        if next(calls) % 4 == 0:
            raise FailBatch("as asked for")

    monkeypatch.setattr(failing, "finish_batch", fails_at_first)
    tester = TransactionTester(module.build(url), partitions=2)
    random, plain = Random(11), Counter[str]()
    for _ in range(6):
        sentences = _sentences(random, 15)
        plain.update(word for _, sentence in sentences for word in sentence.split())
        tester.run(sentences)
        check_tables(url, plain)
    assert tester.failed_tries
    assert check_records(url, tester.records("counts"), tester.records("buckets")) == {*range(1, 7)}
    tester.close()
