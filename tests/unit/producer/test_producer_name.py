"""A producer without a name has its journal's; a new journal has one that no other host has."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from sequitur.errors import JournalError
from sequitur.kafka.records import check_producer_name
from sequitur.producer import IdempotentProducer, ProducerSettings
from sequitur.producer._opening import journal_producer, unnamed_producer
from sequitur.producer.journal.disk import RealDisk
from sequitur.producer.journal.journal import Journal
from tests.support.fake_wire import FakeWire
from tests.support.producers import use

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _wire(monkeypatch: pytest.MonkeyPatch) -> None:
    use(FakeWire(), monkeypatch)


def _producer(journal: Path, name: str | None = None) -> IdempotentProducer:
    return IdempotentProducer("unused:1", ProducerSettings(name=name, journal=journal))


@pytest.mark.promise("in-hosts-run-producer")
async def test_two_hosts_never_share_a_name(tmp_path: Path) -> None:
    """Nor two journals of one host, nor two clones of one machine."""
    names = {unnamed_producer(tmp_path / "none", host) for host in ("a", "b", "localhost") * 3}
    assert len(names) == 9
    assert {name.rpartition("-")[0] for name in names} == {
        "sequitur-a",
        "sequitur-b",
        "sequitur-localhost",
    }


@pytest.mark.parametrize("host", ["", "über.example", "a b\n:c", "x" * 300, "..."])
def test_any_host_makes_a_name(tmp_path: Path, host: str) -> None:
    """Whatever the machine is called, event ids can hold it."""
    check_producer_name(unnamed_producer(tmp_path, host))


@pytest.mark.promise("in-hosts-run-producer")
async def test_a_journal_keeps_its_name_wherever_it_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that is recreated has another host name, and the journal of before."""
    monkeypatch.setattr("socket.gethostname", lambda: "first")
    async with _producer(tmp_path / "journal") as first:
        assert first.name.startswith("sequitur-first-")
        await first.send("t", b"1")
    monkeypatch.setattr("socket.gethostname", lambda: "second")
    shutil.copytree(tmp_path / "journal", tmp_path / "volume")
    async with _producer(tmp_path / "volume") as second:
        assert second.name == first.name
        ticket = await second.send_many("t", [b"2"])
        assert (await ticket).persisted == 1
    async with _producer(tmp_path / "other") as other:
        assert other.name.startswith("sequitur-second-")


async def test_a_name_that_was_given_is_the_name(tmp_path: Path) -> None:
    """A journal of another one is refused, as ever."""
    async with _producer(tmp_path / "journal", "mine"):
        pass
    async with _producer(tmp_path / "journal") as unnamed:
        assert unnamed.name == "mine"
    with pytest.raises(JournalError, match="mine"):
        await _producer(tmp_path / "journal", "yours").start()


def test_a_journal_that_cannot_be_read_has_no_name(tmp_path: Path) -> None:
    """Opening it says what is wrong; until then there is a name to say it under."""
    folder = tmp_path / "journal"
    assert journal_producer(folder) is None
    Journal.open_on(RealDisk(folder), producer="mine").close()
    assert journal_producer(folder) == "mine"
    for segment in folder.glob("*.journal"):
        segment.write_bytes(b"\0" * 100)
    assert journal_producer(folder) is None
    assert unnamed_producer(folder, "a").startswith("sequitur-a-")
