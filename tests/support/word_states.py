"""What the example of transactional words has left in its database and in its topics."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import TypeAlias

    Record: TypeAlias = tuple[bytes | None, bytes | None]

BUCKET_SIZE = 10


def rows_of(url: str, table: str) -> dict[Any, tuple[Any, Any, int]]:
    """Value, previous value and transaction id of each key of a state."""
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            found = connection.execute(text(f"SELECT key, value, previous, txid FROM {table}"))
            return {key: (value, previous, txid) for key, value, previous, txid in found}
    finally:
        engine.dispose()


def committed_by(url: str, topology: str) -> dict[str, int]:
    """The newest transaction id of each committer; all tasks of one have to have the same."""
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            statement = text(
                "SELECT component, min(txid), max(txid) FROM sequitur_transactions "
                "WHERE topology = :topology GROUP BY component"
            )
            found = connection.execute(statement, {"topology": topology}).all()
    finally:
        engine.dispose()
    assert all(first == last for _, first, last in found), found
    return {component: last for component, _, last in found}


def bucketed(counts: Mapping[str, int]) -> dict[int, int]:
    """How many words are in each bucket; those without a word are left out."""
    return dict(Counter(count // BUCKET_SIZE for count in counts.values()))


def check_tables(url: str, counts: Mapping[str, int]) -> None:
    found = {word: value for word, (value, _, _) in rows_of(url, "word_counts").items()}
    assert found == dict(counts)
    buckets = {bucket: value for bucket, (value, _, _) in rows_of(url, "word_buckets").items()}
    assert {bucket: words for bucket, words in buckets.items() if words} == bucketed(counts)


def check_records(url: str, counts: Iterable[Record], buckets: Iterable[Record]) -> set[int]:
    """Each committed batch is in both topics once, and its records are those of its rows.

    Args:
        url: The database.
        counts: Records of the words, those of a word in order.
        buckets: Those of the buckets, likewise.

    Returns:
        The ids of the batches that had words.
    """
    newest: dict[str, tuple[int, int]] = {}
    batches: set[int] = set()
    for key, value in counts:
        word, found = (key or b"").decode(), json.loads(value or b"")
        batch, count = newest.get(word, (0, 0))
        # A record that is missing breaks the chain, and so does one that is there twice.
        assert (found["before"], found["batch"] > batch) == (count, True), (word, found)
        newest[word] = (found["batch"], found["count"])
        batches.add(found["batch"])
    rows = rows_of(url, "word_counts")
    assert newest == {word: (txid, value) for word, (value, _, txid) in rows.items()}
    latest: dict[int, tuple[int, int]] = {}
    for key, value in buckets:
        bucket, found = int(key or b""), json.loads(value or b"")
        assert found["batch"] > latest.get(bucket, (0, 0))[0], (bucket, found)
        latest[bucket] = (found["batch"], found["words"])
        assert found["batch"] in batches
    rows = rows_of(url, "word_buckets")
    assert latest == {bucket: (txid, value) for bucket, (value, _, txid) in rows.items()}
    return batches


def words_of(number: int) -> list[str]:
    """The words of an event, made of its number: ten of five thousand."""
    return [f"word-{(number * (7 + place) + place * 1_009) % 5_000}" for place in range(10)]
