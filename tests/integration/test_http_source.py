"""POST /events: taken once it is answered 202, told what was not taken, held back when full."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestClient, TestServer

from producer._outcomes import NotPersisted, Persisted, PossiblyPersisted
from producer.sources import SourceError
from producer.sources._http import HttpLimits, HttpSource
from producer.sources._json_lines import EventParser, parse_key
from tests.fake_intake import FakeIntake

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aiohttp import web

    from producer._outcomes import Outcome

    Client = TestClient[web.Request, web.Application]
    Post = Callable[..., Awaitable[tuple[int, dict[str, Any]]]]

_JSON = "application/json"
_NDJSON = "application/x-ndjson"
_LIMITS = HttpLimits(body_bytes=1_000, pending_bytes=1_500, room_timeout_s=0.05)


@pytest.fixture
def intake() -> FakeIntake:
    """Takes the events."""
    return FakeIntake()


@pytest.fixture
def source() -> HttpSource:
    """With small limits."""
    return HttpSource("127.0.0.1", 0, EventParser(parse_key("json:host"), 100), _LIMITS)


@pytest.fixture
async def client(source: HttpSource, intake: FakeIntake) -> AsyncIterator[Client]:
    """Talks to the source's application."""
    server = TestServer(source.application(intake), host="127.0.0.1")
    async with TestClient(server) as client:
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
    """With the key that the settings name."""
    body = b'{ "host" : "a",\n "x":1.0 }'
    status, answer = await post(body, _JSON)
    assert (status, answer) == (202, {"accepted": 1, "refused": [], "refused_count": 0})
    assert intake.events == [(b"a", body)]
    assert intake.journal.durable == 1


async def test_the_content_type_may_name_a_charset(post: Post, intake: FakeIntake) -> None:
    """As most clients do."""
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
    """It is the key of all."""
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
    """And with the reason."""
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
    """Of each event, in their order."""
    intake.outcomes = lambda record, place: Persisted(int(record.value or b"0"), 100 + place)
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
    """502, with what became of each."""
    outcomes: list[Outcome] = [
        Persisted(0, 5),
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
    """With when to try again."""
    intake.room.clear()
    for query in ("", "?wait=persisted"):
        async with client.post(f"/events{query}", json=1) as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "1")
    assert source.statistics().requests_without_room == 2
    intake.room.set()
    async with client.post("/events", json=2) as response:
        assert response.status == 202
    assert intake.values == [b"2"]


async def test_the_bodies_held_at_the_same_time_are_bounded(post: Post, intake: FakeIntake) -> None:
    """Beyond the limit it is 503 at once; afterwards there is room again."""
    intake.sync_allowed.clear()
    first = asyncio.ensure_future(post(b"1\n" * 499))
    await intake.until(accepted=499)
    assert (await post(b"1\n" * 499))[0] == 503
    intake.sync_allowed.set()
    assert (await first)[0] == 202
    assert (await post(b"1\n" * 499))[0] == 202


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


async def test_a_request_while_stopping_is_answered_503(post: Post, intake: FakeIntake) -> None:
    """On a connection that is still open."""
    intake.stopping.set()
    assert (await post(b"1"))[0] == 503
    assert intake.values == []


async def test_a_port_that_is_taken_is_an_error(source: HttpSource, intake: FakeIntake) -> None:
    """That names it."""
    run = asyncio.create_task(source.run(intake, None))
    await source.listening.wait()
    second = HttpSource("127.0.0.1", source.port, EventParser(None, 100))
    with pytest.raises(SourceError, match=f"cannot listen on 127.0.0.1:{source.port}"):
        await second.run(FakeIntake(), None)
    intake.stopping.set()
    await run
