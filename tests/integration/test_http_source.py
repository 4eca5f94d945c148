"""POST /events: taken once it is answered 202, told what was not taken, held back when full."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import tracemalloc
import zlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import ClientSession

from sequitur.base.json_field import parse_key
from sequitur.errors import JournalError, ProducerClosedError, RetriableError, SourceError
from sequitur.producer._outcome import NotPersisted, Persisted, PossiblyPersisted
from sequitur.producer.sources._http_body import MAX_KEPT, BodyEvents, HttpLimits
from sequitur.producer.sources._http_server import HttpSource
from sequitur.producer.sources._lines import EventParser, TextParser
from tests.support.fake_intake import FakeIntake
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from sequitur.producer._outcome import Outcome

    Client = ClientSession
    _Slow = tuple[asyncio.StreamReader, asyncio.StreamWriter]
    Post = Callable[..., Awaitable[tuple[int, dict[str, Any]]]]

_JSON = "application/json"
_NDJSON = "application/x-ndjson"
_FORM = "application/x-www-form-urlencoded"
_LIMITS = HttpLimits(body_bytes=1_000, pending_bytes=1_500, room_timeout_s=0.05)


@pytest.fixture
def intake() -> FakeIntake:
    return FakeIntake()


@pytest.fixture
def source() -> HttpSource:
    return HttpSource("127.0.0.1", 0, EventParser(parse_key("json:host"), 100), _LIMITS)


@contextlib.asynccontextmanager
async def _serving(source: HttpSource, intake: FakeIntake) -> AsyncIterator[Client]:
    run = asyncio.create_task(source.run(intake, None))
    await source.listening.wait()
    async with ClientSession(f"http://127.0.0.1:{source.port}") as client:
        yield client
    intake.stopping.set()
    await run


@pytest.fixture
async def client(source: HttpSource, intake: FakeIntake) -> AsyncIterator[Client]:
    async with _serving(source, intake) as client:
        yield client


@pytest.fixture
def post(client: Client) -> Post:
    """Posts a body; gives the status and the answer."""

    async def post(
        body: bytes, content_type: str = _NDJSON, query: str = "", **headers: str
    ) -> tuple[int, dict[str, Any]]:
        headers["Content-Type"] = content_type
        async with client.post(f"/events{query}", data=body, headers=headers) as response:
            assert response.content_type == _JSON
            return response.status, await response.json()

    return post


async def test_one_event_is_taken_as_it_was_written(post: Post, intake: FakeIntake) -> None:
    body = b'{ "host" : "a",\n "x":1.0 }'
    status, answer = await post(body, _JSON)
    assert (status, answer) == (202, {"accepted": 1, "refused": [], "refused_count": 0})
    assert intake.events == [(b"a", body)]
    assert intake.journal.durable == 1


async def test_the_content_type_may_name_a_charset(post: Post, intake: FakeIntake) -> None:
    assert (await post(b"1", "application/json; charset=utf-8"))[0] == 202
    assert intake.values == [b"1"]


async def test_many_events_are_taken_in_their_order(post: Post, intake: FakeIntake) -> None:
    """One a line, blank lines are none, and the last needs no newline."""
    status, answer = await post(b'1\n\n{"host":"b"}\r\n3')
    assert (status, answer["accepted"]) == (202, 3)
    assert intake.events == [(None, b"1"), (b"b", b'{"host":"b"}'), (None, b"3")]


async def test_the_key_of_the_query_goes_before_that_of_the_event(
    post: Post, intake: FakeIntake
) -> None:
    await post(b'{"host":"b"}\n2', query="?key=a%20%C3%A4")
    assert [key for key, _ in intake.events] == ["a ä".encode()] * 2


async def test_the_answer_waits_for_the_journal(post: Post, intake: FakeIntake) -> None:
    """202 says that the events survive a power cut."""
    intake.sync_allowed.clear()
    request = asyncio.ensure_future(post(b"1", _JSON))
    await intake.until(accepted=1)
    done, _ = await asyncio.wait((request,), timeout=0.02)
    assert not done
    intake.sync_allowed.set()
    assert (await request)[0] == 202


async def test_who_sends_is_told_that_the_journal_may_have_the_events(
    post: Post, intake: FakeIntake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing would be wrong: the next start may send them, and who sends again doubles them."""

    async def fail(_place: int) -> None:
        assert intake.values == [b"1"]
        raise JournalError("the disk is away")

    monkeypatch.setattr(intake, "make_durable", fail)
    status, answer = await post(b"1", _JSON)
    assert (status, answer["accepted"]) == (500, None)
    assert answer["error"] == "the events may be kept, or not: the disk is away"


@pytest.mark.parametrize("query", ["", "?wait=persisted"])
@pytest.mark.parametrize(
    "error", [ProducerClosedError("the producer failed"), RetriableError("no room within 1 s")]
)
async def test_whatever_hinders_the_producer_nothing_was_taken(
    post: Post, intake: FakeIntake, error: Exception, query: str
) -> None:
    """A bare 500 would say that the journal may have the events."""

    def fail() -> None:
        raise error

    intake.on_accept = fail
    status, answer = await post(b"1", _JSON, query)
    assert (status, answer) == (503, {"error": str(error), "accepted": 0})


async def test_good_lines_are_taken_and_bad_ones_listed(post: Post, intake: FakeIntake) -> None:
    """The bad ones are in the dead-letter file, too."""
    long = b'"' + b"x" * 200 + b'"'
    status, answer = await post(b"1\nnul\n2\n\xff\n" + long)
    assert (status, answer["accepted"], answer["refused_count"]) == (202, 2, 3)
    assert [(each["line"], each["reason"].split(":")[0]) for each in answer["refused"]] == [
        (2, "no JSON"),
        (4, "no UTF-8"),
        (5, "too long"),
    ]
    assert intake.values == [b"1", b"2"]
    assert [raw for raw, _, _ in intake.refused] == [b"nul", b"\xff", long[:100]]
    assert intake.refused[0][1] == "POST /events from 127.0.0.1 line 2"


@pytest.mark.parametrize(
    ("body", "content_type", "line"),
    [
        (b'{\n"a": 1,\n"b": nul\n}', _JSON, 3),
        (b"nul\n", _NDJSON, 1),
        (b'"' + b"x" * 200 + b'"', _JSON, 1),
    ],
)
async def test_nothing_good_is_answered_400_with_the_line(
    post: Post, intake: FakeIntake, body: bytes, content_type: str, line: int
) -> None:
    status, answer = await post(body, content_type)
    assert (status, answer["accepted"]) == (400, 0)
    assert [each["line"] for each in answer["refused"]] == [line]
    assert intake.values == []
    assert len(intake.refused) == 1


@pytest.mark.parametrize("content_type", [_JSON, _NDJSON])
@pytest.mark.parametrize("body", [b"", b" \n\n"])
async def test_no_event_at_all_is_answered_400(
    post: Post, intake: FakeIntake, body: bytes, content_type: str
) -> None:
    """It is a mistake of the sender, and no dead letter."""
    status, answer = await post(body, content_type)
    assert (status, answer["error"]) == (400, "the body holds no event")
    assert intake.refused == []


@pytest.mark.parametrize(
    ("query", "headers"),
    [("?wait=persisted", {}), ("", {"Prefer": "wait=10"}), ("", {"Prefer": "foo; x, Wait"})],
)
async def test_waiting_gives_partition_and_offset(
    post: Post, intake: FakeIntake, query: str, headers: dict[str, str]
) -> None:
    intake.outcomes = lambda record, place: Persisted(
        int(record.value or b"0"), 100 + place, "t", 0
    )
    status, answer = await post(b"7\nnul\n8", query=query, **headers)
    assert status == 201
    assert answer["events"] == [
        {"partition": 7, "offset": 100},
        {"partition": 8, "offset": 101},
    ]
    assert answer["refused_count"] == 1


async def test_the_query_goes_before_the_header(post: Post) -> None:
    """`wait=journaled` is 202 whatever the client prefers."""
    assert (await post(b"1", query="?wait=journaled", Prefer="wait"))[0] == 202
    assert (await post(b"1", query="?wait=long"))[0] == 400


async def test_waiting_tells_what_did_not_get_there(post: Post, intake: FakeIntake) -> None:
    outcomes: list[Outcome] = [
        Persisted(0, 5, "t", 0),
        NotPersisted("refused"),
        PossiblyPersisted("no answer"),
    ]
    intake.outcomes = lambda _, place: outcomes[place]
    status, answer = await post(b"1\n2\n3", query="?wait=persisted")
    assert status == 502
    assert answer["events"] == [
        {"partition": 0, "offset": 5},
        {"outcome": "not persisted", "reason": "refused"},
        {"outcome": "possibly persisted", "reason": "no answer"},
    ]


async def test_a_body_too_large_is_answered_413(post: Post, client: Client) -> None:
    """Told by its length before it is read, or when it has become too long."""
    assert (await post(b"1\n" * 501))[0] == 413

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(600):
            yield b"1\n"

    headers = {"Content-Type": _NDJSON}
    async with client.post("/events", data=chunks(), headers=headers) as response:
        assert response.status == 413


async def test_a_compressed_body_counts_by_what_is_in_it(
    client: Client, intake: FakeIntake
) -> None:
    """Gzip is taken, and is no way around the limit."""
    headers = {"Content-Type": _NDJSON, "Content-Encoding": "gzip"}
    for body, status in ((b"1\n" * 500, 202), (b"1\n" * 100_000, 413)):
        data = gzip.compress(body)
        async with client.post("/events", data=data, headers=headers) as response:
            assert response.status == status
    assert intake.values == [b"1"] * 500


async def test_no_room_is_answered_503_and_nothing_is_taken(
    client: Client, intake: FakeIntake, source: HttpSource
) -> None:
    intake.room.clear()
    for query in ("", "?wait=persisted"):
        async with client.post(f"/events{query}", json=1) as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "1")
    assert source.statistics().requests_without_room == 2
    intake.room.set()
    async with client.post("/events", json=2) as response:
        assert response.status == 202
    assert intake.values == [b"2"]


@contextlib.asynccontextmanager
async def _waiting_for_room(intake: FakeIntake, **posted: Any) -> AsyncIterator[Client]:
    """A client of a source that holds the body of another request already."""
    limits = HttpLimits(body_bytes=1_000, pending_bytes=1_500, room_timeout_s=60)
    source = HttpSource("127.0.0.1", 0, EventParser(None, 100), limits)
    waiting = asyncio.Event()
    async with _serving(source, intake) as client:
        intake.room.clear()
        intake.on_accept = waiting.set
        held = asyncio.ensure_future(client.post("/events", **posted))
        await waiting.wait()
        yield client
        intake.room.set()
        async with await held as response:
            assert response.status == 202


async def test_the_bodies_held_at_the_same_time_are_bounded(intake: FakeIntake) -> None:
    """Beyond the limit it is 503 at once; afterwards there is room again."""
    posted: dict[str, Any] = {"data": b"1\n" * 499, "headers": {"Content-Type": _NDJSON}}
    async with _waiting_for_room(intake, **posted) as client:
        async with client.post("/events", **posted) as response:
            assert response.status == 503
        intake.room.set()
        await intake.until(accepted=499)
        async with client.post("/events", **posted) as response:
            assert response.status == 202


@pytest.mark.promise("in-http-clients-slow")
async def test_a_compressed_body_holds_what_is_in_it(intake: FakeIntake) -> None:
    """Two that are small on the way and large in memory are too much at the same time."""
    headers = {"Content-Type": _NDJSON, "Content-Encoding": "gzip"}
    data = gzip.compress(b"1\n" * 499)
    assert len(data) < 60
    async with (
        _waiting_for_room(intake, data=data, headers=headers) as client,
        client.post("/events", data=data, headers=headers) as response,
    ):
        assert response.status == 503


@pytest.mark.promise("in-http-client-waits")
@pytest.mark.parametrize("query", ["", "?wait=persisted"])
async def test_who_waits_for_kafka_or_the_disk_holds_no_body(
    post: Post, intake: FakeIntake, query: str
) -> None:
    """What was accepted counts in the producer, and not here once more."""
    intake.answers = False
    intake.sync_allowed.clear()
    requests = []
    for number in range(1, 5):
        requests.append(asyncio.ensure_future(post(b"1\n" * 499, query=query)))
        await asyncio.wait(
            (asyncio.ensure_future(intake.until(accepted=499 * number)), requests[-1]),
            return_when=asyncio.FIRST_COMPLETED,
        )
        assert len(intake.values) == 499 * number
    intake.sync_allowed.set()
    for delivery in intake.unanswered:
        delivery.set_result(Persisted(0, 0, "t", 0))
    assert {(await request)[0] for request in requests} == {201 if query else 202}


@pytest.mark.promise("in-http-client-waits")
@pytest.mark.usefixtures("client")
async def test_a_client_that_goes_away_waits_no_longer(
    source: HttpSource, post: Post, intake: FakeIntake
) -> None:
    intake.answers = False
    _, writer = await asyncio.open_connection("127.0.0.1", source.port)
    head = "POST /events?wait=persisted HTTP/1.1\r\nHost: a\r\nContent-Type: application/json"
    writer.write(f"{head}\r\nContent-Length: 1\r\n\r\n1".encode())
    await intake.until(accepted=1)
    (delivery,) = intake.unanswered
    assert not delivery.done()
    writer.transport.abort()
    await asyncio.wait_for(asyncio.wait((delivery,)), PATIENCE_S)
    assert delivery.cancelled()
    intake.answers = True
    assert (await post(b"2", query="?wait=persisted"))[0] == 201
    assert intake.values == [b"1", b"2"]


@pytest.mark.promise("in-header-request-utf")
@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("header", [b"Content-Encoding: \xff", b"Content-Encoding: gz\xc3ip"])
async def test_a_header_that_is_no_utf_8_is_refused_by_name(
    source: HttpSource, header: bytes
) -> None:
    """It is the client's fault, and the answer can be written down."""
    reader, writer = await asyncio.open_connection("127.0.0.1", source.port)
    head = (
        b"POST /events HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json"
    )
    writer.write(head + b"\r\n" + header + b"\r\nContent-Length: 1\r\n\r\n1")
    answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 415 ")
    assert b"Content-Encoding" in answer.partition(b"\r\n\r\n")[2]


async def test_other_paths_methods_and_types_are_refused(client: Client) -> None:
    """404, 405 with what is allowed, 415; in JSON as all answers."""
    for method, path, status in (
        ("POST", "/", 404),
        ("GET", "/events", 405),
        ("POST", "/events", 415),
    ):
        async with client.request(method, path, data=b"1") as response:
            assert (response.status, response.content_type) == (status, _JSON)
            assert "error" in await response.json()
            if status == 405:
                assert response.headers["Allow"] == "POST"


async def test_it_listens_until_the_daemon_stops(source: HttpSource, intake: FakeIntake) -> None:
    """A request that was begun is answered; new ones are not taken."""
    run = asyncio.create_task(source.run(intake, None))
    await source.listening.wait()
    intake.sync_allowed.clear()
    async with ClientSession(f"http://127.0.0.1:{source.port}") as session:
        request = asyncio.ensure_future(session.post("/events", json={"a": 1}))
        await intake.until(accepted=1)
        intake.stopping.set()
        await asyncio.sleep(0)
        intake.sync_allowed.set()
        async with await request as response:
            assert response.status == 202
    await run
    assert [json.loads(value) for value in intake.values] == [{"a": 1}]


async def _begin(client: Client, source: HttpSource, sent: bytes, announced: int) -> _Slow:
    """A request whose body does not come whole."""
    del client
    reader, writer = await asyncio.open_connection("127.0.0.1", source.port)
    head = f"POST /events HTTP/1.1\r\nHost: a\r\nContent-Type: {_NDJSON}\r\n"
    writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % announced + sent)
    await writer.drain()
    return reader, writer


async def _status(slow: _Slow) -> int:
    line = await asyncio.wait_for(slow[0].readline(), PATIENCE_S)
    slow[1].close()
    return int(line.split()[1])


async def test_a_request_whose_body_comes_while_it_stops_is_answered_503(
    client: Client, source: HttpSource, intake: FakeIntake
) -> None:
    slow = await _begin(client, source, b"1\n", 900)
    async with client.post("/events", json=1) as response:  # so it is surely being read
        assert response.status == 202
    intake.stopping.set()
    assert await _status(slow) == 503
    assert intake.values == [b"1"]


@pytest.mark.promise("in-http-clients-open")
async def test_clients_that_say_nothing_keep_nobody_out(intake: FakeIntake) -> None:
    """Beyond the limit it is 503 at once; who sends no head in time is closed."""
    limits = HttpLimits(connections=3, body_timeout_s=0.2)
    source = HttpSource("127.0.0.1", 0, EventParser(None, 100), limits)
    run = asyncio.create_task(source.run(intake, None))
    await source.listening.wait()
    silent = [await asyncio.open_connection("127.0.0.1", source.port) for _ in range(3)]
    silent[0][1].write(b"POST /events HTTP/1.1\r\nHost: a\r\n")
    one_more = await asyncio.open_connection("127.0.0.1", source.port)
    assert await _status(one_more) == 503
    async with asyncio.timeout(PATIENCE_S):
        for reader, writer in silent:
            assert await reader.read() == b""
            writer.close()
    async with ClientSession(f"http://127.0.0.1:{source.port}") as client:
        for _ in range(2):  # and one that has asked is let ask again
            async with client.post("/events", json=1) as response:
                assert response.status == 202
            await asyncio.sleep(0.3)
    intake.stopping.set()
    await run


@pytest.mark.promise("in-http-clients-open")
async def test_a_client_that_goes_away_is_no_error(
    client: Client,
    source: HttpSource,
    post: Post,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whoever looks for it finds it in the log, without a traceback."""
    gone = asyncio.Event()
    log = SimpleNamespace(debug=lambda *_args, **_more: gone.set(), info=print)
    monkeypatch.setattr("sequitur.producer.sources._http_server._log", log)
    _, writer = await _begin(client, source, b"1\n", 900)
    assert (await post(b"1"))[0] == 202  # so it is surely being read
    writer.transport.abort()
    await asyncio.wait_for(gone.wait(), PATIENCE_S)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.promise("in-http-clients-slow")
async def test_slow_clients_hold_no_more_than_they_sent(
    client: Client, source: HttpSource, post: Post
) -> None:
    """What they announce takes nothing of the room for others."""
    slow = [await _begin(client, source, b"1", 900) for _ in range(8)]
    for _ in range(3):
        assert (await post(b"1\n" * 490))[0] == 202
    for _, writer in slow:
        writer.close()


@pytest.mark.promise("in-http-clients-slow")
async def test_a_body_that_does_not_come_in_time_is_answered_408(intake: FakeIntake) -> None:
    limits = HttpLimits(body_timeout_s=0.05)
    source = HttpSource("127.0.0.1", 0, EventParser(None, 100), limits)
    async with _serving(source, intake) as client:
        assert await _status(await _begin(client, source, b"1", 2)) == 408
    assert intake.values == []


@pytest.mark.promise("in-http-clients-slow")
async def test_a_body_that_swells_is_cut_off_at_the_limit(client: Client) -> None:
    data = gzip.compress(b" " * (64 << 20))
    tracemalloc.start()
    async with client.post(
        "/events", data=data, headers={"Content-Type": _NDJSON, "Content-Encoding": "gzip"}
    ) as response:
        assert response.status == 413
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20


@pytest.mark.parametrize(
    ("encoding", "data", "status"),
    [
        ("gzip", gzip.compress(b"1\n", mtime=0) + gzip.compress(b"2\n", mtime=0), 202),
        ("deflate", zlib.compress(b"1\n2\n"), 202),
        ("gzip", gzip.compress(b"1\n2\n", mtime=0)[:-4], 400),
        ("gzip", b"1\n2\n", 400),
        ("br", b"1\n2\n", 415),
    ],
)
async def test_a_body_is_opened_as_it_says(
    client: Client, intake: FakeIntake, encoding: str, data: bytes, status: int
) -> None:
    headers = {"Content-Type": _NDJSON, "Content-Encoding": encoding}
    async with client.post("/events", data=data, headers=headers) as response:
        assert response.status == status
    assert intake.values == ([b"1", b"2"] if status == 202 else [])


@pytest.mark.promise("in-http-client-sends-invalid")
async def test_garbage_is_counted_and_kept_in_part(intake: FakeIntake) -> None:
    """The dead-letter file does not grow by what a client likes to send."""
    source = HttpSource("127.0.0.1", 0, EventParser(None, 1 << 20))
    headers = {"Content-Type": _NDJSON}
    async with _serving(source, intake) as client:
        async with client.post("/events", data=b"x\n" * 50_000, headers=headers) as response:
            status, answer = response.status, await response.json()
        kept = intake.refused.copy()
        large = b"\n".join([b"x" * (40 << 10)] * 3)
        async with client.post("/events", data=large, headers=headers) as response:
            assert (await response.json())["dead_lettered"] == 1
    assert (status, answer["accepted"], answer["refused_count"]) == (400, 0, 50_000)
    assert (answer["dead_lettered"], len(answer["refused"])) == (MAX_KEPT, 1_000)
    assert len(kept) == MAX_KEPT + 1
    assert kept[-1][2] == f"{50_000 - MAX_KEPT} more invalid events of this request: not stored"


@pytest.mark.promise("in-http-client-sends-invalid")
async def test_a_large_body_leaves_others_their_turn(intake: FakeIntake) -> None:
    """It is taken apart in slices, between which the loop goes round."""
    events = BodyEvents(intake, "here")
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await events.parse_lines(EventParser(None, 100), b"nul\n" * 100_000, None)
    counting.cancel()
    assert events.refused_count == 100_000
    assert turns > 20


async def test_garbage_that_cannot_be_kept_is_still_counted(post: Post, intake: FakeIntake) -> None:
    """Its sender is told, and has it; a file that fills up stops nothing."""
    intake.copies_kept = 0
    status, answer = await post(b"nul\n1\n")
    assert (status, answer["accepted"], answer["refused_count"]) == (202, 1, 1)
    assert answer["dead_lettered"] == 0


@pytest.mark.promise("in-client-right-sends")
@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (None, 401),
        ("Bearer wrong", 401),
        ("Bearer s3cret ", 202),
        ("bearer s3cret", 202),
        ("Basic s3cret", 401),
        ("Bearer \xe4", 401),
        ("s3cret", 401),
    ],
)
async def test_with_a_token_each_request_carries_it(
    intake: FakeIntake, authorization: str | None, status: int
) -> None:
    """401 says how it is given, and the body is not even read."""
    source = HttpSource("127.0.0.1", 0, EventParser(None, 100), token="s3cret")
    headers = {} if authorization is None else {"Authorization": authorization}
    async with (
        _serving(source, intake) as client,
        client.post("/events", json=1, headers=headers) as response,
    ):
        assert response.status == status
        if status == 401:
            assert response.headers["WWW-Authenticate"] == "Bearer"
            assert "s3cret" not in await response.text()
    assert intake.values == ([b"1"] if status == 202 else [])


@pytest.mark.parametrize(
    ("body", "values"),
    [
        (b'{"a":1}', [b'{"a":1}']),
        (b'{\n"a":1\n}', [b'{\n"a":1\n}']),
        (b'{"a":1}\n{"a":2}\n', [b'{"a":1}', b'{"a":2}']),
    ],
)
async def test_what_curl_sends_by_itself_is_taken(
    post: Post, intake: FakeIntake, body: bytes, values: list[bytes]
) -> None:
    """`curl -d` calls everything a form: one value, or one a line."""
    assert (await post(body, _FORM))[0] == 202
    assert intake.values == values


async def test_text_is_taken_by_the_line(intake: FakeIntake) -> None:
    """With `format = text`: as `text/plain`, and as what curl calls a form; JSON is as it is."""
    source = HttpSource("127.0.0.1", 0, TextParser(100))
    async with _serving(source, intake) as client:
        for kind in ("text/plain", _FORM, _JSON):
            headers = {"Content-Type": kind}
            async with client.post("/events", data=b"one two\n3", headers=headers) as response:
                assert response.status == 202
    assert intake.values == [b"one two", b"3", b"one two", b"3", b"one two\n3"]


@pytest.mark.promise("in-client-right-sends")
async def test_a_form_of_a_browser_is_refused(post: Post, intake: FakeIntake) -> None:
    """Any page could send one here, without being asked."""
    assert (await post(b"1", _FORM, Origin="https://example.org"))[0] == 403
    assert (await post(b"a=1&b=2", _FORM))[0] == 400
    assert intake.values == []


@pytest.mark.promise("in-events-come-http")
async def test_without_a_journal_the_answer_is_the_outcome(post: Post, intake: FakeIntake) -> None:
    """202 would promise what nothing keeps."""
    intake.journals = False
    status, answer = await post(b"1")
    assert (status, answer["events"]) == (201, [{"partition": 0, "offset": 0}])
    intake.outcomes = lambda _record, _place: NotPersisted("refused")
    for query in ("", "?wait=journaled"):
        status, answer = await post(b"1", query=query)
        assert (status, answer["events"]) == (
            502,
            [{"outcome": "not persisted", "reason": "refused"}],
        )


async def test_a_port_that_is_taken_is_an_error(source: HttpSource, intake: FakeIntake) -> None:
    run = asyncio.create_task(source.run(intake, None))
    await source.listening.wait()
    second = HttpSource("127.0.0.1", source.port, EventParser(None, 100))
    with pytest.raises(SourceError, match=f"cannot listen on 127.0.0.1:{source.port}"):
        await second.run(FakeIntake(), None)
    intake.stopping.set()
    await run


@pytest.mark.promise("in-http-client-sends")
@pytest.mark.parametrize(
    "head",
    [
        b"\x16\x03\x01\x02\x00 a TLS client",
        b"POST /events HTTP/1.1\r\nHost\r\n\r\n",
        b"POST /events HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST /events HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
    ],
)
async def test_a_malformed_head_is_answered_and_is_no_error(
    client: Client, source: HttpSource, caplog: pytest.LogCaptureFixture, head: bytes
) -> None:
    """Whoever can connect could fill the log with tracebacks."""
    for before in (b"", b"GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", source.port)
        async with asyncio.timeout(PATIENCE_S):
            if before:
                writer.write(before)
                assert b" 404 " in await reader.readuntil(b"}")
            writer.write(head)
            answer = await reader.read()
        writer.close()
        assert answer.split()[1] == b"400"
    async with client.get("/nowhere") as response:
        assert response.status == 404
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
