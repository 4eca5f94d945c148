"""Whose identity it is: lives of a producer, copies of its journal, other clusters, no rights."""

from __future__ import annotations

import asyncio
import shutil
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.errors import JournalError, ProducerClosedError, TakenOverError, WrongClusterError
from sequitur.producer import IdempotentProducer, Outcome, Persisted, Record, parse_event_id
from tests.support.fake_wire import DELAYED, DROPPED, LOST, FakeWire
from tests.support.outcomes import InLog
from tests.support.producers import kill, make_producer, use, values_of
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path


def _life(journal: Path, **settings: Any) -> IdempotentProducer:
    of_life: dict[str, Any] = {
        "linger": timedelta(milliseconds=1),
        "close_timeout": timedelta(seconds=2),
        "name": "me",
    }
    return make_producer(journal=journal, **(of_life | settings))


async def _sent(producer: IdempotentProducer, *values: bytes) -> list[Outcome]:
    return [await (await producer.send("t", value)) for value in values]


def _check(wire: FakeWire, sent: dict[bytes, Outcome]) -> None:
    assert sorted(values_of(wire), key=lambda value: value or b"") == sorted(sent)
    for value, outcome in sent.items():
        assert isinstance(outcome, Persisted)
        assert outcome.offset is None or values_of(wire)[outcome.offset] == value


@pytest.mark.promise("in-journal-restored-copy")
async def test_a_journal_that_was_put_back_from_a_copy_loses_and_doubles_nothing(
    wire: FakeWire, tmp_path: Path
) -> None:
    """Its numbers are those of batches that are in the log already, of other events."""
    journal, copy = tmp_path / "journal", tmp_path / "copy"
    values = [b"a", b"b", b"c", b"d", b"e", b"f"]
    outcomes: list[Outcome] = []
    async with _life(journal) as producer:
        outcomes += await _sent(producer, *values[:2])
        shutil.copytree(journal, copy)
        outcomes += await _sent(producer, *values[2:4])
    shutil.rmtree(journal)
    copy.rename(journal)
    async with _life(journal) as producer:
        outcomes += await _sent(producer, *values[4:])
    _check(wire, dict(zip(values, outcomes, strict=True)))
    ids = [record.headers[-1][1] or b"" for record in wire.records["t", 0]]
    assert [parse_event_id(found).sequence for found in ids] == [0, 1, 2, 3, 2, 3]
    assert len(set(ids)) == 6


@pytest.mark.promise("in-journal-restored-copy")
async def test_an_un_acked_batch_of_a_copy_is_settled_under_its_own_numbers(
    wire: FakeWire, tmp_path: Path
) -> None:
    """The copy holds it as on its way; by now it is in the log, and others behind it."""
    journal, copy = tmp_path / "journal", tmp_path / "copy"
    producer = _life(journal)
    await producer.start()
    await _sent(producer, b"a")
    wire.fault = lambda records: LOST if records[0].value == b"b" else None
    lost = await producer.send("t", b"b")
    await wire.broken.wait()
    shutil.copytree(journal, copy)
    wire.fault = lambda _records: None
    await lost
    await _sent(producer, b"c", b"d", b"e", b"f", b"g", b"h")
    await producer.close()
    async with _life(copy) as producer:
        assert producer.statistics().recovered == 1
        await _sent(producer, b"i")
    assert values_of(wire) == [b"%c" % value for value in b"abcdefghi"]


@pytest.mark.promise("in-journal-restored-copy")
@pytest.mark.parametrize("anew", [False, True], ids=["once taken over", "taken over twice"])
async def test_what_waits_in_a_copy_is_looked_up_before_it_is_sent(
    wire: FakeWire, tmp_path: Path, *, anew: bool
) -> None:
    """It had no number when the copy was made; the original has sent it since."""
    journal, copy = tmp_path / "journal", tmp_path / "copy"
    values = [b"%d" % number for number in range(60)]
    producer = _life(journal)
    await producer.start()
    await _sent(producer, values[0])
    wire.reachable = wire.connected = False
    for value in values[1:40]:
        await (await producer.accept("t", [Record(value)])).journaled
    if anew:
        await kill(producer)
        producer = _life(journal)
        await producer.start()
    for value in values[40:]:
        await (await producer.accept("t", [Record(value)])).journaled
    shutil.copytree(journal, copy)
    wire.reachable = True
    await producer.flush()
    await producer.close()
    async with _life(copy) as producer:
        assert any(map(len, producer._former.waiting.values()))
        await _sent(producer, b"last")
    assert values_of(wire) == [*values, b"last"]


@pytest.mark.promise("in-processes-run-copies")
async def test_of_two_hosts_on_copies_the_older_ends_by_name(
    wire: FakeWire, tmp_path: Path
) -> None:
    """Where the newer has written the older is refused; nobody's events vanish."""
    journal, copy = tmp_path / "journal", tmp_path / "copy"
    async with _life(journal) as producer:
        first = await _sent(producer, b"0")
    shutil.copytree(journal, copy)
    async with _life(journal) as older, _life(copy) as newer:
        outcomes = [await _sent(older, b"older 1"), await _sent(newer, b"newer 1")]
        refused = await older.send("t", b"older 2")
        assert isinstance(await asyncio.wait_for(older.failure(), PATIENCE_S), TakenOverError)
        assert not isinstance(await refused, Persisted)
        with pytest.raises(ProducerClosedError, match="another process has taken over this name"):
            await older.send("t", b"older 3")
        outcomes.append(await _sent(newer, b"newer 2"))
    values = [b"0", b"older 1", b"newer 1", b"newer 2"]
    _check(wire, dict(zip(values, [*first, *(o for (o,) in outcomes)], strict=True)))


@pytest.mark.promise("in-cluster-rebuilt-assigns")
async def test_a_cluster_that_gives_out_the_same_producer_id_again_gets_all(
    wire: FakeWire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Built anew under the same cluster id: the numbers in the journal are worth nothing."""
    producer = _life(tmp_path / "journal")
    await producer.start()
    await _sent(producer, b"0")
    wire.fault = lambda _records: DROPPED
    await producer.send("t", b"1")
    await wire.broken.wait()
    await kill(producer)
    rebuilt = FakeWire()
    use(rebuilt, monkeypatch)
    async with _life(tmp_path / "stranger", name="stranger") as stranger:
        await _sent(stranger, b"of a stranger", b"of a stranger, too")  # with producer id 1
    async with _life(tmp_path / "journal") as producer:
        await _sent(producer, b"2")
    assert values_of(rebuilt)[2:] == [b"1", b"2"]


@pytest.mark.promise("in-journal-belongs-cluster")
async def test_another_cluster_is_refused_by_name(
    wire: FakeWire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong address sends nothing; whoever means it says so, and un-acked events go along."""
    journal = tmp_path / "journal"
    producer = _life(journal)
    await producer.start()
    await _sent(producer, b"0")
    wire.fault = lambda _records: DROPPED
    await producer.send("t", b"1")
    await wire.broken.wait()
    await kill(producer)
    other = FakeWire()
    other.cluster_id = "another"
    use(other, monkeypatch)
    with pytest.raises(WrongClusterError, match=r"belongs to cluster cluster.*is cluster another"):
        await _life(journal).start()
    async with _life(journal, accept_new_cluster=True) as producer:
        await _sent(producer, b"2")
    assert values_of(other) == [b"1", b"2"]
    async with _life(journal) as producer:  # from now on it is that cluster's
        await _sent(producer, b"3")
    assert values_of(other) == [b"1", b"2", b"3"]


@pytest.mark.promise("in-journal-belongs-cluster")
async def test_another_cluster_is_refused_also_when_it_answers_late(
    wire: FakeWire, tmp_path: Path
) -> None:
    """The journal took events before anybody could say which cluster it is."""
    async with _life(tmp_path / "journal") as producer:
        await _sent(producer, b"0")
    wire.reachable = wire.connected = False
    async with _life(tmp_path / "journal") as producer:
        await producer.send("t", b"1")
        await (await producer.accept("t", [])).journaled
        wire.cluster_id, wire.reachable = "another", True
        assert isinstance(await asyncio.wait_for(producer.failure(), PATIENCE_S), WrongClusterError)
    assert values_of(wire) == [b"0"]


@pytest.mark.promise("in-processes-run-copies")
async def test_without_the_right_to_its_name_each_life_has_a_producer_id_of_its_own(
    wire: FakeWire, tmp_path: Path
) -> None:
    """Nothing vanishes; only that two hold the name is not noticed."""
    wire.may_use_names = False
    outcomes = []
    for value in (b"0", b"1", b"2"):
        async with _life(tmp_path / "journal") as producer:
            outcomes += await _sent(producer, value)
    assert outcomes == [InLog(0, number) for number in range(3)]
    assert wire.ids == 3


@pytest.mark.promise("in-processes-run-copies")
async def test_a_renewal_is_refused_to_who_has_been_taken_over(
    wire: FakeWire, tmp_path: Path
) -> None:
    """Also where the newer has not written: the coordinator knows who came last."""
    journal, copy = tmp_path / "journal", tmp_path / "copy"
    async with _life(journal) as older:
        await _sent(older, b"0")
        shutil.copytree(journal, copy)
        async with _life(copy):
            wire.fault = lambda _records: 45
            await older.send("t", b"1")
            assert isinstance(await asyncio.wait_for(older.failure(), PATIENCE_S), TakenOverError)


async def test_who_waits_for_the_disk_hears_that_the_producer_has_failed(
    wire: FakeWire, tmp_path: Path
) -> None:
    """Nothing is written any more: waiting on would be for ever."""
    journal, copy = tmp_path / "journal", tmp_path / "copy"
    async with _life(journal) as older:
        await _sent(older, b"0")
        shutil.copytree(journal, copy)
        async with _life(copy) as newer:
            await _sent(newer, b"1")
            await older.send("t", b"2")
            assert isinstance(await asyncio.wait_for(older.failure(), PATIENCE_S), TakenOverError)
            assert older._running is not None
            with pytest.raises(JournalError, match="taken over"):
                await asyncio.wait_for(
                    older._running.rounds.kept(older._running.rounds.next_cut), PATIENCE_S
                )
    assert values_of(wire) == [b"0", b"1"]


async def _leave_on_its_way(journal: Path, wire: FakeWire, *values: bytes) -> None:
    """A life that is killed while its last request is about to reach a broker."""
    producer = _life(journal)
    await producer.start()
    await _sent(producer, *values[:-1])
    wire.fault = lambda _records: DELAYED
    await producer.send("t", values[-1])
    await wire.broken.wait()
    await kill(producer)
    wire.fault = lambda _records: None
    wire.connected = True


@pytest.mark.promise("in-request-producer-killed")
@pytest.mark.parametrize("before", [(), (b"a",)], ids=["first of its life", "behind another"])
@pytest.mark.parametrize("moment", ["asked", "sent", "closed"])
async def test_a_request_of_a_former_life_that_arrives_late_doubles_nothing(
    wire: FakeWire, tmp_path: Path, before: tuple[bytes, ...], moment: str
) -> None:
    """The next life sends the batch under the same numbers: the broker takes one of the two."""
    journal = tmp_path / "journal"
    await _leave_on_its_way(journal, wire, *before, b"late")
    if moment == "asked":
        wire.on_judged = wire.deliver
    async with _life(journal) as producer:
        await _sent(producer, b"next")
        if moment == "sent":
            wire.deliver()
        await _sent(producer, b"last")
    wire.deliver()
    assert values_of(wire) == [*before, b"late", b"next", b"last"]
