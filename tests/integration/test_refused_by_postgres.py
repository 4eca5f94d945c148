"""A database that does not hold all that a state takes: which events are to blame."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from sequitur.consumer.topology import TransactionalTopologyBuilder, TransactionTester
from sequitur.consumer.topology.state import SQLStore, TransactionalState
from sequitur.consumer.topology.state.sql.engines import engine_of
from sequitur.errors import TransactionError
from tests.support.state_databases import create, opened, writer
from tests.support.transactions import Gather, Journal, Noting, events

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.one_process


@pytest.fixture
def latin(postgres: PostgresServer) -> Iterator[SQLStore]:
    """A database of Western letters alone."""
    postgres.sql("DROP DATABASE IF EXISTS latin")
    postgres.sql("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    store = SQLStore(postgres.url("latin"))
    yield store
    engine_of(store).dispose()


def _tester(store: SQLStore) -> TransactionTester:
    journal = Journal()
    builder = TransactionalTopologyBuilder("refused", "spout")
    builder.set_bolt("a", Noting(journal)).shuffle_grouping("spout")
    states = {"count": TransactionalState(store, "counts")}
    builder.set_bolt("sum", Gather(journal), 2, states=states).fields_grouping("a", "value")
    return TransactionTester(builder.build())


@pytest.mark.promise("state-state-database-refuses")
def test_the_database_leads_to_the_events_that_it_refuses(
    latin: SQLStore, postgres: PostgresServer
) -> None:
    """By the key of the row; each other event counts once."""
    tester = _tester(latin)
    tester.run(events("a", "\u017c\u00f3\u0142w", "b", "\U0001f600", "\u00e9"))
    assert len(tester.dead_letters) == 2
    found = postgres.sql("SELECT key, value FROM counts ORDER BY value, length(key), key", "latin")
    assert sorted(found) == [("a", 1), ("b", 1), ("\u00e9", 1)]


def test_a_database_of_unicode_is_not_asked_for_letters(
    database: str,
) -> None:
    """It has all of them: no row is written in the trial, and nobody waits for who locks them."""
    store = SQLStore(database)
    counts = TransactionalState(store, "counts")
    create(counts)
    batch = opened(writer(1), counts)
    batch.state("counts").multi_put(["\u017c\u00f3\u0142w"], [1])
    with psycopg.connect(store.url.replace("+psycopg", "")) as stranger:
        stranger.execute("LOCK TABLE counts")
        batch.try_out()
    engine_of(store).dispose()


@pytest.mark.test_all
@pytest.mark.promise("state-state-database-refuses")
def test_a_stream_that_the_database_refuses_is_not_given_up(
    latin: SQLStore, postgres: PostgresServer
) -> None:
    """The job ends by name, with what the database says."""
    tester = _tester(latin)
    with pytest.raises(TransactionError, match=r"the events are not the cause.*latin-1"):
        tester.run(events(*(f"\u017c{number}" for number in range(20))))
    assert tester.dead_letters == []
    assert postgres.sql("SELECT count(*) FROM counts", "latin") == [(0,)]
