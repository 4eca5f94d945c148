"""A checkpoint's documents and files in an object store, on an S3 server that runs here."""

from __future__ import annotations

import itertools
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pytest

from sequitur.consumer.topology import Root, Sent
from sequitur.pipelines._errors import OwnershipError
from sequitur.pipelines.rows.run_rows import Part, RunRows
from sequitur.pipelines.store.object_path import ObjectPath, object_path
from sequitur.pipelines.store.object_storage import ObjectStorage
from sequitur.pipelines.store.ownership import Ownership
from sequitur.pipelines.store.part_files import PartFile
from sequitur.pipelines.topology import exchange_files
from sequitur.pipelines.topology.exchange_files import ExchangeFile, tuples_in_order
from tests.support.s3_server import BUCKET, SECRET_KEY, S3Server

if TYPE_CHECKING:
    from collections.abc import Iterator

_RACERS = 64
_SCHEMA = pa.schema([("offset", pa.int64()), ("event_time_ms", pa.int64())])


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """The server."""
    with S3Server() as one:
        yield one


@pytest.fixture
def root(server: S3Server) -> Iterator[ObjectPath]:
    """A folder of its own in the bucket."""
    found = object_path(f"s3a://{BUCKET}/{uuid4().hex}", server.settings().get)
    assert found is not None
    yield found
    server.fault()


def test_of_many_that_create_one_document_one_wins(root: ObjectPath) -> None:
    """And all find what it wrote; so it goes for each of several documents."""
    storages = [ObjectStorage(root) for _ in range(_RACERS)]
    at_once = threading.Barrier(_RACERS)

    def race(place: int, name: str) -> bool:
        at_once.wait()
        return storages[place].create(name, f"racer {place}")

    with ThreadPoolExecutor(_RACERS) as pool:
        for name in ("frontier/0", "frontier/1", "frontier/2"):
            won = [*pool.map(race, range(_RACERS), itertools.repeat(name))]
            assert won.count(True) == 1
            assert storages[0].read(name) == f"racer {won.index(True)}"


@pytest.mark.parametrize(("refused", "lost"), [(2, 0), (0, 1), (1, 2)])
def test_document_whose_answer_is_lost_is_ours(
    server: S3Server, root: ObjectPath, refused: int, lost: int
) -> None:
    """It is read back: what has our text was created by us, and nobody else's counts as that."""
    storage = ObjectStorage(root)
    server.fault(refused=refused, lost=lost, of=root.key)
    assert storage.create("done/1", "ours")
    assert server.faults_left() == 0
    assert not storage.create("done/1", "another's")
    server.fault(refused=refused, lost=lost, of=root.key)
    assert not storage.create("done/1", "a third's")
    assert storage.read("done/1") == "ours"


def test_older_owner_learns_of_a_newer_one_and_both_have_numbers_of_their_own(
    root: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever either believes of the other's heartbeat, and whoever gets no answer."""
    monkeypatch.setattr("sequitur.pipelines.store.ownership.refuse_if_owned", lambda *_, **__: None)
    owners = [Ownership(ObjectStorage(root), beat_s=60) for _ in range(8)]
    with ThreadPoolExecutor(len(owners)) as pool:
        [*pool.map(Ownership.take, owners)]
    owners.sort(key=lambda owner: owner.generation)
    assert [owner.generation for owner in owners] == [*range(1, 9)]
    owners[-1].check()
    for older in owners[:-1]:
        with pytest.raises(OwnershipError, match="has taken this checkpoint over"):
            older.check()
    for owner in owners:
        owner.release()


def test_documents_are_replaced_listed_and_deleted(root: ObjectPath) -> None:
    """As on a path: a folder is there as long as something is in it."""
    storage = ObjectStorage(root)
    assert (storage.names(""), storage.exists("owners"), storage.exists("owners/1")) == (
        [],
        False,
        False,
    )
    for name in ("owners/1", "owners/2", "runs/a/b", "runs/.hidden"):
        storage.replace(name, name)
    storage.replace("owners/1", "anew")
    assert storage.names("owners") == ["1", "2"]
    assert storage.names("") == ["owners", "runs"]
    assert storage.names("runs") == ["a"]
    assert storage.read("owners/1") == "anew"
    assert storage.exists("runs/a")
    storage.delete("runs")
    storage.delete("owners/2")
    storage.delete("never/there")
    assert storage.names("") == ["owners"]
    assert storage.names("owners") == ["1"]
    with pytest.raises(FileNotFoundError):
        storage.read("owners/2")


def test_files_are_written_and_read_by_whoever_is_told_of_them(root: ObjectPath) -> None:
    """In another process, too: where they are is pickled, with how to get there, and not shown."""
    folder: ObjectPath = pickle.loads(pickle.dumps(root / "runs"))
    with PartFile(folder, _SCHEMA, row_group_rows=10) as file:
        for offset in range(0, 1_000, 10):
            numbers = list(range(offset, offset + 10))
            file.write(pa.table([numbers, numbers], schema=_SCHEMA))
    assert file.location is not None
    assert [*root.sizes().values()] == [file.size_bytes]
    part = Part((file.location,), first_ms=500, last_ms=519, reasons=())
    (rows,) = RunRows((part,), None, ("offset",)).slices()
    assert sorted(rows["offset"].to_pylist()) == [*range(500, 520)]
    assert SECRET_KEY not in repr(file.location)
    with pytest.raises(FileNotFoundError):
        RunRows((Part((root / "runs" / "other.parquet",)),), None, ("offset",))


def test_large_file_goes_in_parts(server: S3Server, root: ObjectPath) -> None:
    """And comes whole, though the server is slow to answer, and refuses some."""
    content = bytes(range(256)) * 100_000
    server.fault(refused=2, of=root.key)
    (root / "large").write_bytes(content)
    assert (root / "large").read_bytes() == content
    assert server.faults_left() == 0


@pytest.mark.parametrize(
    ("location", "found"),
    [
        ("s3://b/a/job/", "s3a://b/a/job"),
        ("s3a://b", "s3a://b/"),
        ("gs://b/job", "gs://b/job"),
        ("file:///job", "None"),
        ("/job", "None"),
        ("hdfs://host/job", "None"),
    ],
)
def test_location_says_which_store_it_is(location: str, found: str) -> None:
    """Hadoop knows S3 by one of its names."""
    assert str(object_path(location, {"fs.s3a.endpoint": "127.0.0.1:1"}.get)) == found


@pytest.mark.parametrize("ahead", [5, 137, 1 << 18])
def test_tuples_come_in_order_however_much_is_read_ahead(
    root: ObjectPath, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """Of what is far away several frames are read at once, and each is read whole."""
    monkeypatch.setattr(exchange_files, "_TUPLES_A_FRAME", 2)
    monkeypatch.setattr(exchange_files, "_READ_AHEAD", ahead)
    file = ExchangeFile(root / "work")
    for number in range(11):
        origin = Root(number + 1, (None, None, (), number, "t", 0, number, 0))
        value = pickle.dumps("x" * (number * 7 % 40))
        file.send("b", 0, Sent(value, ("a", "default"), ((origin, 1),), ("a",)))
    file.close()
    found = tuples_in_order([(file.path, {"b": file.index["b", 0]})])
    assert [one.trees[0][0].id for _, one in found] == [*range(1, 12)]
