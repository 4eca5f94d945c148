"""`sequitur dlq` on a real topic: dead letters are listed, shown, and given back to the job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from sequitur.base.copy_headers import DEAD_HEADERS
from sequitur.pipelines.store.job_identity import CHECKPOINT_FORMAT
from sequitur.pipelines.topology.replays import read_request, requests
from tests.support.dead_letters import T0, TRACEBACK, dead_headers
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker


class Dlq:
    """A job's settings, its checkpoint, and its dead-letter topic of one partition."""

    def __init__(self, broker: Broker, topic: str, folder: Path) -> None:
        self.topic = topic
        self.replays = folder / "checkpoint" / "replays"
        self._servers = broker.bootstrap_servers
        self._config = folder / "job.toml"
        self._config.write_text(
            f'[reorder]\ninput_topics = ["readings"]\noutput_topic = "ordered"\n'
            f'event_time = "json:at"\ncheckpoint = "{folder / "checkpoint"}"\n'
            f'[process]\ndead_letter_topic = "{topic}"\n'
        )
        (folder / "checkpoint").mkdir()
        job = {
            "format": CHECKPOINT_FORMAT, "kind": "sequitur-reorder", "input_topics": ["readings"],
            "input_pattern": None, "event_time": "json:at", "output_topic": "ordered",
            "topology": "words",
        }  # fmt: skip
        (folder / "checkpoint" / "format.json").write_text(json.dumps(job))

    def fill(self, *letters: dict[str, Any], transaction: str | None = None) -> None:
        """Write dead letters as the job does; in a transaction that is then aborted, if named."""
        options: dict[str, Any] = {"bootstrap.servers": self._servers}
        if transaction is not None:
            options["transactional.id"] = transaction
        client = Producer(options)
        if transaction is not None:
            client.init_transactions(PATIENCE_S)
            client.begin_transaction()
        for letter in letters:
            said = {name: value for name, value in letter.items() if name not in {"key", "foreign"}}
            headers = [] if letter.get("foreign") else [("id", b"1"), *dead_headers(**said)]
            client.produce(self.topic, b"x", letter.get("key", b"k"), headers=headers)
        assert client.flush(PATIENCE_S) == 0
        if transaction is not None:
            client.abort_transaction(PATIENCE_S)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "sequitur", "dlq", *words, "--config", str(self._config)],
            env={**os.environ, "KAFKA_BOOTSTRAP_SERVERS": self._servers},
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip


@pytest.fixture
def dlq(broker: Broker, make_topic: MakeTopic, tmp_path: Path) -> Dlq:
    """Five records: a timeout, two exceptions of which one is of an older event, one foreign."""
    made = Dlq(broker, make_topic(1), tmp_path)
    made.fill(
        {"reason": "timeout", "key": b"a", "source_offset": 1, "failed_at_ms": T0 + 100},
        {"source_offset": 2, "event_time_ms": T0 + 7, "failed_at_ms": T0 + 200},
        {"foreign": True},
        {"source_offset": 3, "event_time_ms": T0 + 3, "failed_at_ms": T0 + 300},
    )
    return made


def test_list_shows_each_and_the_totals(dlq: Dlq) -> None:
    """What failed, where and why; an aborted transaction's and a stranger's are no dead letters."""
    dlq.fill({"source_offset": 9}, transaction=f"aborted-{dlq.topic}")
    run = dlq.run("list", "--json")
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["totals"] == {"exception": 2, "timeout": 1}
    assert found["foreign"] == 1
    assert [letter["offset"] for letter in found["dead_letters"]] == [0, 1, 3]
    assert found["dead_letters"][0] == {
        "partition": 0,
        "offset": 0,
        "reason": "timeout",
        "attempts": 5,
        "path": ["spout", "parse", "count"],
        "key": "a",
        "event_time_ms": T0,
        "failed_at_ms": T0 + 100,
        "source": {"topic": "readings", "partition": 2, "offset": 1},
        "component": None,
        "stream": None,
        "error": "ValueError: invalid literal for int() with base 10: 'x'",
        "file": None,
    }


def test_list_is_narrowed_and_bounded(dlq: Dlq) -> None:
    """By reason, by key, and to the newest; the totals are of all that were asked for."""
    only = json.loads(dlq.run("list", "--json", "--reason", "exception", "--limit", "1").stdout)
    assert [letter["offset"] for letter in only["dead_letters"]] == [3]
    assert only["totals"] == {"exception": 2}
    shown = dlq.run("list", "--key", "a").stdout
    assert "readings/2 @ 1" in shown
    assert "timeout" in shown
    assert "exception" not in shown


def test_show_tells_all_of_one(dlq: Dlq) -> None:
    """With its whole traceback and the event's own headers."""
    run = dlq.run("show", "0:1")
    assert run.returncode == 0, run.stderr
    assert TRACEBACK in run.stdout
    assert "header id" in run.stdout
    found = json.loads(dlq.run("show", "0:1", "--json").stdout)
    assert found["headers"] == [["id", "1"]]
    assert (found["value"], found["topology"]) == ("x", "words")


@pytest.mark.promise("process-dead-letters-replayed")
def test_replay_requests_events_in_the_order_of_their_time(dlq: Dlq) -> None:
    """All dead letters, as first they came; the stranger's record is passed over and told."""
    run = dlq.run("replay", "--all")
    assert run.returncode == 0, run.stderr
    assert "requested 3 events of 3 dead letters" in run.stdout
    assert "not dead letters: 1 records" in run.stderr
    (path,) = requests(dlq.replays)
    rows = read_request(path).to_pylist()
    assert [(row["event_time_ms"], row["offset"]) for row in rows] == [
        (T0, 1),
        (T0 + 3, 3),
        (T0 + 7, 2),
    ]
    for row in rows:
        assert (row["topic"], row["partition"], row["value"]) == ("readings", 2, b"x")
        assert row["headers"] == [{"key": "id", "value": b"1"}]
        assert not {header["key"] for header in row["headers"]} & set(DEAD_HEADERS)


@pytest.mark.promise("process-dlq-replay-run")
def test_replay_takes_what_was_chosen_and_was_not_replayed_before(dlq: Dlq) -> None:
    """By record, by reason, by key: each a request of its own."""
    for chosen in (
        ("--record", "0:3", "--record", "0:0"),
        ("--reason", "exception"),
        ("--key", "a", "--again"),
    ):
        run = dlq.run("replay", *chosen)
        assert run.returncode == 0, run.stderr
    found = [read_request(path)["offset"].to_pylist() for path in requests(dlq.replays)]
    assert found == [[1, 3], [2], [1]]
    run = dlq.run("replay", "--all")
    assert run.returncode == 1
    assert "passed over, since they were replayed before (--again): 3" in run.stderr
    assert "all that is selected was replayed before" in run.stdout
    assert len(requests(dlq.replays)) == 3
    dlq.fill({"source_offset": 4})
    assert "requested 1 events of 1 dead letters" in dlq.run("replay", "--all").stdout


def test_replay_of_nothing_is_told_by_the_status(dlq: Dlq) -> None:
    run = dlq.run("replay", "--reason", "crash")
    assert run.returncode == 1, run.stderr
    assert "nothing is selected" in run.stdout
    assert requests(dlq.replays) == ()


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("0:2", "record 0:2 is not a dead letter: it has no header sequitur-dlq-reason"),
        ("0:4", "has no record at 0:4"),
        ("9:0", "has no record at 9:0"),
    ],
)
def test_replay_of_what_is_none_is_refused(dlq: Dlq, record: str, message: str) -> None:
    """A stranger's record, and a place without one; nothing is requested, of the others neither."""
    run = dlq.run("replay", "--record", "0:0", "--record", record)
    assert run.returncode == 3
    assert message in run.stderr
    assert "Traceback" not in run.stderr
    assert requests(dlq.replays) == ()


@pytest.mark.parametrize("chosen", [(), ("--all", "--key", "a"), ("--record", "nought")])
def test_replay_has_to_be_told_which(dlq: Dlq, chosen: tuple[str, ...]) -> None:
    """Neither nothing, nor two ways at once, nor a place that is none."""
    run = dlq.run("replay", *chosen)
    assert run.returncode == 2
    assert requests(dlq.replays) == ()


@pytest.mark.promise("process-dead-letters-replayed")
def test_replay_for_another_job_is_refused(dlq: Dlq) -> None:
    run = dlq.run("replay", "--all", "--output-topic", "other")
    assert run.returncode == 3
    assert "belongs to a job with output_topic = 'ordered', not 'other'" in run.stderr
