"""The words whose bolts fail, in rounds of killing: the topology's file, and what has to come."""

from __future__ import annotations

import json
import logging
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.output_reading import read_output
from tests.support.word_states import check_records, check_tables, committed_by, words_of

if TYPE_CHECKING:
    from tests.spark.kill_rounds import Rounds
    from tests.support.word_states import Record

_FILE = Path(__file__).with_name("failing_words.py")
_logger = logging.getLogger(__name__)


def with_its_places(folder: Path, *, password_env: str | None = None, **environment: str) -> Path:
    """Return a copy of the topology that finds in its own text what it takes from the environment.

    Tasks on another machine import the file, too, and have not the driver's environment.

    Args:
        folder: Where it is written to.
        password_env: The variable that has the password of the database.
        environment: What it takes from the environment.
    """
    text, store = _FILE.read_text(), 'SQLStore(os.environ["STATE_URL"]'
    assert store in text
    text = text.replace(store, f"{store}, password_env={password_env!r}")
    for name, value in environment.items():
        assert f'os.environ["{name}"]' in text
        text = text.replace(f'os.environ["{name}"]', repr(value))
    copy = folder / "words_of_a_cluster.py"
    copy.write_text(text)
    return copy


def check_words(
    rounds: Rounds, report: dict[str, Any], *, url: str, words: str, buckets: str
) -> None:
    """Each event counts once or is in one of the other topics, and each batch is out once.

    Args:
        rounds: The job, with the topology behind it.
        report: The last life's report.
        url: The database.
        words: The topic of the words.
        buckets: The topic of the buckets.
    """
    settings, counts = rounds.settings, report["processed"]
    dead = _numbers(rounds, rounds.job["process"].dead_letters(settings.output_topic))
    aside = [*_numbers(rounds, settings.late), *_numbers(rounds, settings.quarantine)]
    left_out = Counter([*dead, *aside])
    assert (report["read"], report["held"]) == (rounds.sent, 0)
    assert (counts["taken"], counts["pending"]) == (report["released"], 0)
    assert (counts["acked"], counts["dead"]) == (rounds.sent - left_out.total(), len(dead))
    assert set(left_out.values()) == {1}
    assert counts["failed"] > len(dead) > 0
    assert {number % 1000 for number in dead} == {500}, "an event was given up for another"
    plain = Counter(word for n in range(rounds.sent) if n not in left_out for word in words_of(n))
    check_tables(url, plain)
    batches = check_records(url, _records(rounds, words), _records(rounds, buckets))
    committed = committed_by(url, "failing-words")
    assert set(committed) == {"count", "bucket"}
    assert committed["count"] == committed["bucket"] == _processed(rounds)["transaction_id"]
    assert batches <= {*range(1, committed["count"] + 1)}
    _logger.info(
        "%d words of %d events in %d transactions",
        *(plain.total(), rounds.sent, committed["count"]),
    )


def _numbers(rounds: Rounds, topic: str) -> list[int]:
    return [json.loads(record.value or b"")["n"] for record in read_output(rounds.kafka, topic)]


def _records(rounds: Rounds, topic: str) -> list[Record]:
    return [(record.key, record.value) for record in read_output(rounds.kafka, topic)]


def _processed(rounds: Rounds) -> dict[str, Any]:
    """What the checkpoint says of its newest step."""
    folder = Path(rounds.place.uri) / "processed"
    newest = max((path for path in folder.iterdir() if path.name.isdigit()), key=_number)
    found: dict[str, Any] = json.loads(newest.read_text())
    return found


def _number(path: Path) -> int:
    return int(path.name)
