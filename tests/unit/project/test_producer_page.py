"""Each Python sample of docs/producer.md does what the page says of it, on a cluster in memory."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from sequitur.producer import IdempotentProducer, NotPersisted
from tests.support.fake_wire import DROPPED, FakeWire
from tests.support.pages import run, samples
from tests.support.producers import make_producer, use
from tests.support.tree import ROOT
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from pathlib import Path

    from sequitur.producer._outcome import GivenUp

_REFUSED: Final = 44  # POLICY_VIOLATION
_PAGE: Final = ROOT / "docs" / "producer.md"
_SAMPLES: Final = dict(
    zip(
        ("first", "outcomes", "resume", "fastapi", "workers"),
        samples(_PAGE.name),
        strict=True,
    )
)


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeWire:
    """A healthy cluster; samples write their files into a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "unused:1")
    wire = FakeWire()
    use(wire, monkeypatch)
    return wire


def _run(*names: str) -> dict[str, Any]:
    return run("producer_page", *(_SAMPLES[name] for name in names))


def _values(wire: FakeWire, topic: str) -> list[bytes | None]:
    return [record.value for record in wire.records[topic, 0]]


def test_the_first_sample_sends_through_a_journal(
    wire: FakeWire, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _run("first")
    shown = re.sub(r"timestamp_ms=\d+", "timestamp_ms=1795846952678", capsys.readouterr().out)
    assert f"```\n{shown}```\n" in _PAGE.read_text()
    assert _values(wire, "orders") == [b'{"item": "lamp"}']
    assert list((tmp_path / "orders.journal").iterdir())


async def test_the_handler_tells_the_three_outcomes_apart(wire: FakeWire) -> None:
    store = _run("outcomes")["store"]
    async with make_producer() as producer:
        assert await store(producer, b"1") == (201, "0:0")
        wire.fault = lambda _records: _REFUSED
        code, reason = await store(producer, b"2")
        assert (code, "POLICY_VIOLATION" in reason) == (422, True)
        wire.fault = lambda _records: DROPPED
        before = wire.requests
        third = asyncio.create_task(store(producer, b"3"))
        while wire.requests == before:  # noqa: ASYNC110 - the cluster sets no event
            await asyncio.sleep(0)
        await producer.close(timedelta(milliseconds=10))
        assert await third == (202, "the producer was closed before it was answered")


async def test_a_second_start_goes_on_at_the_position(wire: FakeWire) -> None:
    """What the first has accepted is not sent again; the rest is."""
    send_all = _run("resume")["send_all"]
    await send_all([b"1", b"2"])
    await send_all([b"1", b"2", b"3"])
    assert _values(wire, "orders") == [b"1", b"2", b"3"]


async def test_a_position_of_another_kind_is_refused_by_name(wire: FakeWire) -> None:
    other: Any = b"1"
    refused = r"^position is bytes, expected sequitur\.producer\.SourcePosition$"
    async with make_producer() as producer:
        with pytest.raises(TypeError, match=refused):
            await producer.accept("orders", [], other)
        with pytest.raises(TypeError, match=refused):
            await producer.note_position(other)
    assert _values(wire, "orders") == []


@in_virtual_time
async def test_only_its_outcome_tells_of_an_event_without_a_topic(wire: FakeWire) -> None:
    del wire
    given_up: list[GivenUp] = []
    async with IdempotentProducer("unused:1", on_given_up=given_up.extend) as producer:
        outcome = await (await producer.send("missing", b"lamp"))
    assert outcome == NotPersisted("topic missing is not there, for 5 s")
    assert given_up == []


def test_the_sample_for_fastapi_is_python() -> None:
    """FastAPI is no dependency, so it is not run."""
    compile(_SAMPLES["fastapi"], "producer.md, fastapi", "exec")


async def test_each_worker_takes_a_journal_of_its_own(wire: FakeWire, tmp_path: Path) -> None:
    del wire
    start = _run("workers")["start_worker"]
    first, second = [await start("unused:1", tmp_path, 2) for _ in range(2)]
    assert first.name != second.name
    with pytest.raises(RuntimeError, match=r"^all 2 journals in .* are in use$"):
        await start("unused:1", tmp_path, 2)
    await first.close()
    again = await start("unused:1", tmp_path, 2)
    assert again.name == first.name
    await again.close()
    await second.close()


async def test_a_thread_hands_its_call_to_the_loop(wire: FakeWire) -> None:
    """The call that the page shows among what is not there."""
    page = _PAGE.read_text()
    call = re.search(r"`(asyncio\.run_coroutine_threadsafe\(.*\)\.result\(\))`", page)
    assert call is not None
    async with make_producer() as producer:
        given = {"producer": producer, "loop": asyncio.get_running_loop(), "order": b"lamp"}
        await asyncio.to_thread(eval, call[1], {"asyncio": asyncio, **given})
    assert _values(wire, "orders") == [b"lamp"]
