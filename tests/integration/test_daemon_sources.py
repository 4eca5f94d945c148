"""Every source of the daemon, as a user runs it: from the source to the topic."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.producer import EVENT_ID_HEADER
from tests.support.daemon_process import read_partitions
from tests.support.dead_letter_file import read_dead_letters
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.conftest import MakeTopic
    from tests.integration.conftest import StartDaemon
    from tests.support.brokers import Broker
    from tests.support.daemon_process import DaemonProcess


def _lines(numbers: Iterable[int]) -> bytes:
    return b"".join(b'{"n":%d,"k":"key-%d"}\n' % (n, n % 7) for n in numbers)


def _numbers(broker: Broker, topic: str) -> list[int]:
    (messages,) = read_partitions(broker.bootstrap_servers, topic)
    return [json.loads(message.value())["n"] for message in messages]


def _stop(daemon: DaemonProcess) -> dict[str, Any]:
    daemon.signal(signal.SIGTERM)
    return daemon.end()


@pytest.mark.promise("in-line-malformed-utf")
def test_what_is_no_event_goes_to_the_dead_letter_file(
    broker: Broker, make_topic: MakeTopic, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """A malformed line, bytes that are no UTF-8, an event over the limit; the others arrive."""
    topic = make_topic(partitions=1)
    lines = tmp_path / "lines.jsonl"
    bad = (b'{"n":', b'{"n":"\xff"}', b'{"n":"%b"}' % (b"x" * 3000))
    lines.write_bytes(_lines([0]) + b"\n".join(bad) + b"\n" + _lines([1, 2]))
    report = start_daemon(
        *("--topic", topic, "--source", f"file:{lines}", "--no-follow"),
        *("--max-request-size", "2 kB", "--name", "reader"),
    ).end()
    assert _numbers(broker, topic) == [0, 1, 2]
    assert (report["persisted"], report["dead_lettered"]) == (3, 3)
    file = tmp_path / "state" / "sequitur" / "producers" / "reader.journal.dead-letters.jsonl"
    found = list(read_dead_letters(file))
    assert [letter.where.partition(" (")[0] for letter in found] == [
        f"{lines} line 2 byte 20",
        f"{lines} line 3 byte 26",
        f"{lines} line 4 byte 36",
    ]
    assert [letter.reason.partition(":")[0] for letter in found] == [
        "no JSON",
        "no UTF-8",
        "too long",
    ]
    assert [letter.raw for letter in found] == [bad[0], bad[1], bad[2][:2000]]
    assert {letter.source for letter in found} == {f"file:{lines}"}


def test_keys_choose_the_partition(
    broker: Broker, make_topic: MakeTopic, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """Each key is in one partition, with its events in the file's order."""
    topic = make_topic(partitions=3)
    lines = tmp_path / "lines.jsonl"
    lines.write_bytes(_lines(range(500)))
    start_daemon(
        *("--topic", topic, "--source", f"file:{lines}", "--no-follow", "--key", "json:k")
    ).end()
    partitions = read_partitions(broker.bootstrap_servers, topic)
    keys = [{message.key() for message in partition} for partition in partitions]
    assert sum(map(len, keys)) == len(set().union(*keys)) == 7
    for partition in partitions:
        numbers = [json.loads(message.value())["n"] for message in partition]
        assert numbers == sorted(set(numbers))
    assert sum(map(len, partitions)) == 500


def test_headers_of_a_files_own_fields_go_with_its_events(
    broker: Broker, make_topic: MakeTopic, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """So that what reads the topic knows the file's own ids."""
    topic = make_topic(partitions=1)
    lines = tmp_path / "lines.jsonl"
    lines.write_bytes(b'{"id":"a-1","meta":{"trace":7}}\n{"id":"a-2"}\n')
    start_daemon(
        *("--topic", topic, "--source", f"file:{lines}", "--no-follow"),
        *("--header", "ce_id=json:id", "--header", "trace=json:meta.trace"),
    ).end()
    (messages,) = read_partitions(broker.bootstrap_servers, topic)
    own = [
        [(name, value) for name, value in message.headers() if name != EVENT_ID_HEADER]
        for message in messages
    ]
    assert own == [[("ce_id", b"a-1"), ("trace", b"7")], [("ce_id", b"a-2")]]
    assert all(EVENT_ID_HEADER in dict(message.headers()) for message in messages)


def test_standard_input_is_sent_to_its_end(
    broker: Broker, make_topic: MakeTopic, start_daemon: StartDaemon
) -> None:
    """Also a last line without a newline."""
    topic = make_topic(partitions=1)
    daemon = start_daemon("--topic", topic, "--source", "stdin", stdin=subprocess.PIPE)
    assert daemon.process.stdin is not None
    daemon.process.stdin.write((_lines(range(3)) + b'{"n":3}').decode())
    daemon.process.stdin.close()
    report = daemon.end()
    assert report["persisted"] == 4
    assert _numbers(broker, topic) == [0, 1, 2, 3]


def test_a_signal_stops_it_while_standard_input_is_silent(
    broker: Broker, make_topic: MakeTopic, start_daemon: StartDaemon
) -> None:
    topic = make_topic(partitions=1)
    daemon = start_daemon("--topic", topic, "--source", "stdin", stdin=subprocess.PIPE)
    assert daemon.process.stdin is not None
    daemon.process.stdin.write(_lines(range(3)).decode())
    daemon.process.stdin.flush()
    while not _numbers(broker, topic):
        time.sleep(0.05)
    assert _stop(daemon)["persisted"] == 3
    assert _numbers(broker, topic) == [0, 1, 2]


def test_a_folders_files_are_sent_by_name_and_renamed(
    broker: Broker, make_topic: MakeTopic, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """Unfinished ones are left alone."""
    topic = make_topic(partitions=1)
    folder = tmp_path / "spool"
    folder.mkdir()
    (folder / "b").write_bytes(_lines([2, 3]))
    (folder / "a").write_bytes(_lines([0, 1]))
    (folder / "c.tmp").write_bytes(_lines([4]))
    start_daemon("--topic", topic, "--source", f"dir:{folder}", "--no-follow").end()
    assert _numbers(broker, topic) == [0, 1, 2, 3]
    assert sorted(path.name for path in folder.iterdir()) == ["a.done", "b.done", "c.tmp"]


def test_http_takes_events_and_tells_their_offsets(
    broker: Broker, make_topic: MakeTopic, start_daemon: StartDaemon
) -> None:
    """202 once they are kept, 201 with offsets once they are in the topic."""
    topic = make_topic(partitions=1)
    daemon = start_daemon("--topic", topic, "--source", "http:127.0.0.1:0")
    url = f"http://127.0.0.1:{daemon.wait_for('listening')['port']}/events"
    headers = {"Content-Type": "application/x-ndjson"}
    for query, numbers in (("", (0, 1)), ("?wait=persisted", (2, 3))):
        request = urllib.request.Request(url + query, _lines(numbers), headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            status, told = answer.status, json.loads(answer.read())
        assert told["accepted"] == 2
        assert status == (201 if query else 202)
    assert told["events"] == [{"partition": 0, "offset": offset} for offset in (2, 3)]
    assert _stop(daemon)["persisted"] == 4
    assert _numbers(broker, topic) == [0, 1, 2, 3]


def test_a_recording_is_replayed_with_its_pauses(
    broker: Broker, make_topic: MakeTopic, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """Divided by the speed; it ends by itself."""
    topic = make_topic(partitions=1)
    recording = tmp_path / "recording.jsonl"
    recording.write_bytes(b"".join(b'{"n":%d,"occurred_at":%d}\n' % (n, n * 500) for n in range(5)))
    report = start_daemon(
        *("--topic", topic, "--source", f"replay:{recording}", "--speed", "4")
    ).end()
    assert report["persisted"] == 5
    (messages,) = read_partitions(broker.bootstrap_servers, topic)
    assert [json.loads(message.value())["n"] for message in messages] == list(range(5))
    sent_ms = [message.timestamp()[1] for message in messages]
    assert 480 <= sent_ms[-1] - sent_ms[0] < 5_000


@pytest.mark.promise("in-dead-letter-file")
def test_a_full_dead_letter_file_ends_it_and_loses_nothing(
    broker: Broker, make_topic: MakeTopic, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """It stops before the line that it could keep nowhere; with room again it goes on there."""
    topic = make_topic(partitions=1)
    lines = tmp_path / "lines.jsonl"
    lines.write_bytes(_lines([0]) + b"nonsense\n" * 3 + _lines([1]))
    letters = tmp_path / "letters.jsonl"
    words = ["--topic", topic, "--source", f"file:{lines}", "--no-follow", "--name", "reader"]
    words += ["--dead-letter", str(letters)]
    report = start_daemon(*words, "--dead-letter-limit", "300 B").end(status=3)
    assert "dead_letter_limit is 300" in report["error"]
    assert str(letters) in report["error"]
    assert letters.stat().st_size <= 300
    report = start_daemon(*words).end()
    assert _numbers(broker, topic) == [0, 1]
    found = {letter.where.partition(" (")[0] for letter in read_dead_letters(letters)}
    assert found == {f"{lines} line {n} byte {20 + 9 * (n - 2)}" for n in (2, 3, 4)}


@pytest.mark.promise("in-line-malformed-utf")
def test_a_kill_before_the_position_is_journaled_doubles_no_dead_letter(
    make_topic: MakeTopic, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """What a kill between the two leaves: a journal of before, and the entries on disk."""
    topic = make_topic(partitions=1)
    lines, letters = tmp_path / "lines.jsonl", tmp_path / "letters.jsonl"
    journal = tmp_path / "journal"
    words = ["--topic", topic, "--source", f"file:{lines}", "--no-follow", "--name", "reader"]
    words += ["--dead-letter", str(letters), "--journal", str(journal)]
    lines.write_bytes(_lines([0]) + b"nonsense\n" * 3)
    start_daemon(*words).end()
    shutil.copytree(journal, tmp_path / "before")
    with lines.open("ab") as more:
        more.write(b"nonsense\n" * 500)
    assert start_daemon(*words).end()["dead_lettered"] == 500
    shutil.rmtree(journal)
    (tmp_path / "before").rename(journal)
    with lines.open("ab") as more:
        more.write(b"rubbish\n")
    report = start_daemon(*words).end()
    found = [letter.where.partition(" (")[0] for letter in read_dead_letters(letters)]
    assert found == [f"{lines} line {n} byte {20 + 9 * (n - 2)}" for n in range(2, 506)]
    assert report["dead_lettered"] == 1


@pytest.mark.promise("in-http-client-sends-invalid")
def test_a_client_cannot_fill_the_dead_letter_file(
    broker: Broker, make_topic: MakeTopic, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """It is told that what it sent is no event, and how much of it is kept; the daemon goes on."""
    topic = make_topic(partitions=1)
    letters = tmp_path / "letters.jsonl"
    daemon = start_daemon(
        *("--topic", topic, "--source", "http:127.0.0.1:0", "--dead-letter", str(letters)),
        *("--dead-letter-limit", "2 kB"),
    )
    port = daemon.wait_for("listening")["port"]
    headers = {"Content-Type": "application/x-ndjson"}
    kept = []
    for _ in range(3):
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/events", b"nonsense\n" * 1_000, headers
        )
        with pytest.raises(urllib.error.HTTPError) as refused, urllib.request.urlopen(request):
            pass
        with refused.value as answer:
            assert answer.code == 400
            told = json.loads(answer.read())
        assert told["refused_count"] == 1_000
        kept.append(told["dead_lettered"])
    assert kept[0] > 0
    assert kept[1:] == [0, 0]
    assert letters.stat().st_size <= 2_000
    request = urllib.request.Request(f"http://127.0.0.1:{port}/events", _lines([0]), headers)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        assert answer.status == 202
    assert _stop(daemon)["persisted"] == 1
    assert _numbers(broker, topic) == [0]


def test_what_curl_sends_and_a_token_are_all_it_takes(
    broker: Broker, make_topic: MakeTopic, start_daemon: StartDaemon
) -> None:
    """A body without a content type of its own; the token comes by the environment, unseen."""
    topic = make_topic(partitions=1)
    daemon = start_daemon(
        *("--topic", topic, "--source", "http:0.0.0.0:0"),
        environ={"SEQUITUR_PRODUCE_HTTP_TOKEN": "tell-nobody"},
    )
    url = f"http://127.0.0.1:{daemon.wait_for('listening')['port']}/events"
    plain = urllib.request.Request(url, b'{"n":0}')  # as curl, this calls it a form
    with pytest.raises(urllib.error.HTTPError, match="401"), urllib.request.urlopen(plain):
        pass
    given = urllib.request.Request(url, b'{"n":0}', {"Authorization": "Bearer tell-nobody"})
    with urllib.request.urlopen(given, timeout=PATIENCE_S) as answer:
        assert answer.status == 202
    assert _stop(daemon)["persisted"] == 1
    assert _numbers(broker, topic) == [0]
    assert "tell-nobody" not in daemon.log


@pytest.mark.promise("in-events-come-http")
def test_without_a_journal_no_event_is_promised_that_nothing_keeps(
    broker: Broker, make_topic: MakeTopic, start_daemon: StartDaemon
) -> None:
    """The answer is the outcome: 201, with the offset."""
    topic = make_topic(partitions=1)
    daemon = start_daemon(
        *("--topic", topic, "--source", "http:127.0.0.1:0", "--durability", "none")
    )
    url = f"http://127.0.0.1:{daemon.wait_for('listening')['port']}/events"
    request = urllib.request.Request(url, b'{"n":0}', {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        assert answer.status == 201
        assert json.loads(answer.read())["events"] == [{"partition": 0, "offset": 0}]
    _stop(daemon)
    assert _numbers(broker, topic) == [0]
