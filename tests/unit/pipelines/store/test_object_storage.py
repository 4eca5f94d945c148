"""A checkpoint's documents and files in an object store, on an S3 server that runs here."""

from __future__ import annotations

import itertools
import json
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock
from uuid import uuid4

import obstore
import pytest
from pyarrow.fs import FileSystem

from sequitur.consumer.topology.engine.plan import Sent
from sequitur.consumer.topology.settling.root import Root
from sequitur.errors import CheckpointError, OwnershipError
from sequitur.kafka.partition import SourcePartition
from sequitur.pipelines.local.plan_log import PlanLog
from sequitur.pipelines.store.object_path import ObjectPath, object_path
from sequitur.pipelines.store.ownership import Ownership
from sequitur.pipelines.store.spark_part import SparkPart
from sequitur.pipelines.store.storage import RemoteStorage
from sequitur.pipelines.store.sweeper import Sweeper
from sequitur.pipelines.topology import files
from sequitur.pipelines.topology.files import ExchangeFile, tuples_in_order
from tests.support.far_files import sizes_in, write_and_read
from tests.support.local_runs import LocalTester
from tests.support.s3_server import BUCKET, LISTED_AT_ONCE, SECRET_KEY, S3Server
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.one_process]  # asks a server of S3

_RACERS = 64


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server tells of its answers."""
    return tmp_path_factory.mktemp("s3") / "answers"


@pytest.fixture(scope="module")
def server(answers: Path) -> Iterator[S3Server]:
    with S3Server(answers) as one:
        yield one


@pytest.fixture
def root(server: S3Server) -> Iterator[ObjectPath]:
    found = object_path(f"s3a://{BUCKET}/{uuid4().hex}", server.settings().get)
    assert found is not None
    yield found
    server.fault()


@pytest.mark.promise("order-checkpoint-object-store")
def test_of_many_that_create_one_document_one_wins(root: ObjectPath) -> None:
    """And all find what it wrote; so it goes for each of several documents."""
    storages = [RemoteStorage(root) for _ in range(_RACERS)]
    at_once = threading.Barrier(_RACERS)

    def race(place: int, name: str) -> bool:
        at_once.wait()
        return storages[place].create(name, f"racer {place}")

    with ThreadPoolExecutor(_RACERS) as pool:
        for name in ("frontier/0", "frontier/1", "frontier/2"):
            won = [*pool.map(race, range(_RACERS), itertools.repeat(name))]
            assert won.count(True) == 1
            assert storages[0].read(name) == f"racer {won.index(True)}"


@pytest.mark.promise("order-checkpoint-object-store")
@pytest.mark.parametrize(("refused", "lost"), [(2, 0), (0, 1), (1, 2)])
def test_document_whose_answer_is_lost_is_ours(
    server: S3Server, root: ObjectPath, refused: int, lost: int
) -> None:
    """It is read back: what has our text was created by us, and nobody else's counts as that."""
    storage = RemoteStorage(root)
    server.fault(refused=refused, lost=lost, of=root.key)
    assert storage.create("done/1", "ours")
    assert server.faults_left() == 0
    assert not storage.create("done/1", "another's")
    server.fault(refused=refused, lost=lost, of=root.key)
    assert not storage.create("done/1", "a third's")
    assert storage.read("done/1") == "ours"


@pytest.mark.promise("order-checkpoint-object-store")
def test_document_is_not_created_where_its_check_fails(root: ObjectPath) -> None:
    storage = RemoteStorage(root)
    with pytest.raises(OwnershipError, match="taken over"):
        storage.create("done/1", "ours", check=Mock(side_effect=OwnershipError("taken over")))
    assert not storage.exists("done/1")
    assert storage.create("done/1", "ours", check=Mock())


def test_older_owner_learns_of_a_newer_one_and_both_have_numbers_of_their_own(
    root: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever either believes of the other's heartbeat, and whoever gets no answer."""
    monkeypatch.setattr("sequitur.pipelines.store.ownership.refuse_if_owned", lambda *_, **__: None)
    owners = [Ownership(RemoteStorage(root), beat_s=60) for _ in range(8)]
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
    storage = RemoteStorage(root)
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
    assert SECRET_KEY not in repr(write_and_read(root))


@pytest.mark.promise("order-checkpoint-object-store")
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
    assert str(object_path(location, {"fs.s3a.endpoint": "127.0.0.1:1"}.get)) == found


def test_files_in_azure_are_in_the_container() -> None:
    """Its account is in the URI, and in the file system, but in no name of a file."""
    found = object_path("abfss://box@account.dfs.core.windows.net/jobs/one", lambda _: None)
    assert found is not None
    assert found.path == FileSystem.from_uri(str(found))[1] == "box/jobs/one"


@pytest.mark.parametrize("ahead", [5, 137, 1 << 18])
def test_tuples_come_in_order_however_much_is_read_ahead(
    root: ObjectPath, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """Of what is far away several frames are read at once, and each is read whole."""
    monkeypatch.setattr(files, "_TUPLES_A_FRAME", 2)
    monkeypatch.setattr(files, "_READ_AHEAD", ahead)
    file = ExchangeFile(root / "work")
    for number in range(11):
        origin = Root(number + 1, (None, None, (), number, "t", 0, number, 0))
        value = pickle.dumps("x" * (number * 7 % 40))
        file.send("b", 0, Sent(value, ("a", "default"), ((origin, 1),), ("a",)))
    file.close()
    found = tuples_in_order([(file.path, {"b": file.index["b", 0]})])
    assert [one.trees[0][0].id for _, one in found] == [*range(1, 12)]


@pytest.mark.promise("order-checkpoint-object-store")
def test_mark_of_a_folder_is_nothing_in_it(server: S3Server, root: ObjectPath) -> None:
    """Consoles and copying tools leave an empty object, named as the folder with a slash."""
    storage = RemoteStorage(root)
    for marked in ("", "frontier/"):
        server.put(f"{root.key}/{marked}")
    assert storage.names("") == ["frontier"]
    assert storage.names("frontier") == []
    assert storage.create("frontier/000000000007", "newest")
    assert storage.names("frontier") == ["000000000007"]
    assert [*sizes_in(root)] == [f"{root.key}/frontier", f"{root.key}/frontier/000000000007"]


def test_folder_of_many_is_listed_and_deleted_whole(root: ObjectPath) -> None:
    """A store lists some at a time; a folder whose name only begins so stays."""
    storage, many = RemoteStorage(root), 2 * LISTED_AT_ONCE + 1
    with ThreadPoolExecutor(8) as pool:
        [*pool.map(lambda n: (root / "runs" / f"{n:04d}").put(b"x"), range(many))]
    (root / "runs2" / "0").put(b"x")
    assert storage.names("runs") == [f"{n:04d}" for n in range(many)]
    storage.delete("runs")
    assert storage.names("") == ["runs2"]


@pytest.mark.parametrize(
    "name", ["a b", "a%20b", "a#b?c&d=e", "a+b~c", "ü/日本", "a:b@c", "[a]{b}*"]
)
def test_names_are_what_they_are(root: ObjectPath, name: str) -> None:
    """Whichever of the two libraries writes, the other finds it: nothing is escaped twice."""
    storage = RemoteStorage(root / name)
    assert storage.create("frontier/1", "document")
    (root / name / "runs").write_bytes(b"rows")
    assert (storage.names(""), storage.read("runs")) == (["frontier", "runs"], "rows")
    assert (root / name / "frontier/1").read_bytes() == b"document"
    assert sorted(sizes_in(root)) == [f"{root.key}/{name}/{of}" for of in ("frontier/1", "runs")]


@pytest.mark.parametrize("location", ["s3a:///job", "s3a://b/a/../job", "gs://b/./job"])
def test_name_that_no_object_can_have_is_refused(location: str) -> None:
    with pytest.raises(CheckpointError, match=f"{location}: name a bucket"):
        object_path(location, lambda _: None)


@pytest.mark.parametrize(
    ("endpoint", "region"),
    [
        ("s3.eu-central-1.amazonaws.com", "eu-central-1"),
        ("https://s3-fips.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("s3.dualstack.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("https://vpce-1a.s3.ap-south-2.vpce.amazonaws.com/", "ap-south-2"),
        ("s3.amazonaws.com", "us-east-1"),
        ("https://minio.example:9000", "us-east-1"),
    ],
)
def test_region_is_that_of_the_endpoint(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, region: str
) -> None:
    """As Hadoop has it, which writes Spark's part: else S3 refuses what is signed for another."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    found = object_path("s3a://b/job", {"fs.s3a.endpoint": endpoint}.get)
    assert found is not None
    assert dict(found.store.options)["region"] == region


def test_bucket_in_the_name_of_the_host_is_there_for_documents_too() -> None:
    """Their client writes to the endpoint as it is; that of files puts the bucket there itself."""
    settings = {"fs.s3a.endpoint": "http://store:80/", "fs.s3a.path.style.access": "false"}
    found = object_path("s3a://bucket/job", settings.get)
    assert found is not None
    assert found.store.objects().config["endpoint"] == "http://bucket.store:80"
    assert dict(found.store.options)["endpoint"] == "http://store:80"


@pytest.mark.promise("order-checkpoint-object-store")
def test_missing_bucket_and_refused_credentials_are_named(server: S3Server) -> None:
    """At once, with what the server says, and the object that was asked for."""
    found = object_path("s3a://no-such-bucket/job", server.settings().get)
    assert found is not None
    storage = RemoteStorage(found)
    begun_s = time.monotonic()
    for ask in (lambda: storage.names(""), lambda: storage.create("format.json", "{}")):
        with pytest.raises(OSError, match=r"s3a://no-such-bucket/job.*NoSuchBucket"):
            ask()
    server.fault(denied=100, of="/denied")
    found = object_path(f"s3a://{BUCKET}/denied", server.settings().get)
    assert found is not None
    storage = RemoteStorage(found)
    refused = "denied/format.json: .*(AccessDenied|403).*credentials"
    for ask in (lambda: storage.exists("format.json"), lambda: storage.create("format.json", "{}")):
        with pytest.raises(PermissionError, match=refused):
            ask()
    server.fault()
    assert time.monotonic() - begun_s < PATIENCE_S  # and not after two minutes each


@pytest.mark.promise("order-checkpoint-object-store")
def test_store_that_refuses_for_a_while_is_waited_for(
    server: S3Server, root: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By time, and not by a few attempts, which are over in seconds: a store may restart."""
    module = "sequitur.pipelines.store.object_path"
    monkeypatch.setattr(f"{module}._LONGEST_PAUSE", timedelta(milliseconds=150))
    settings = {**server.settings(), "fs.s3a.endpoint.region": "eu-west-1"}  # a client of its own
    found = object_path(str(root), settings.get)
    assert found is not None
    server.fault(refused=15, of=root.key)
    RemoteStorage(found).replace("heartbeats/1", "beat")
    assert server.faults_left() == 0
    assert RemoteStorage(root).read("heartbeats/1") == "beat"


def test_folder_is_deleted_from_a_store_that_tells_what_was_not_there(
    root: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GCS and Azure do, and no folder is an object: a sweep goes on with the next one."""
    delete = obstore.delete

    def telling(store: Any, keys: Any) -> None:
        if isinstance(keys, str):
            obstore.head(store, keys)
        delete(store, keys)

    monkeypatch.setattr(obstore, "delete", telling)
    storage = RemoteStorage(root)
    for name in ("runs/1/a", "runs/1/b", "runs/2/a"):
        storage.replace(name, name)
    storage.delete("runs/1")
    assert storage.names("runs") == ["2"]
    (root / "never" / "there").unlink()


def test_files_of_many_folders_go_at_once(
    root: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a request for all folders, and one for all files; what is missing is passed over."""
    storage, delete, asked = RemoteStorage(root), obstore.delete, []

    def counted(store: Any, keys: Any) -> None:
        asked.append(len(keys))
        delete(store, keys)

    monkeypatch.setattr(obstore, "delete", counted)
    for name in ("runs/1/a", "runs/1/b", "runs/2/a", "runs/20/a", "done/1", "done/2"):
        storage.replace(name, name)
    storage.delete_folders(["runs/1", "runs/2", "runs/3"])
    storage.delete_files(["done/1", "done/3"])
    assert (storage.names("runs"), storage.names("done")) == (["20"], ["2"])
    assert asked == [3, 2]
    storage.delete_folders([])
    storage.delete_files([])
    assert asked == [3, 2]


def test_steps_are_swept_together(root: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is to be deleted waits for a while: the newest step says all that those before said."""
    storage, listed = RemoteStorage(root), []
    names = [f"{step:012d}-000000-0" for step in range(5)]
    for name in names:
        storage.replace(f"runs/{name}/part", "rows")
        storage.replace(f"done/{name}", "done")
    list_names = storage.names

    def counted(folder: str) -> list[str]:
        listed.append(folder)
        return list_names(folder)

    monkeypatch.setattr(storage, "names", counted)
    sweeper = Sweeper(storage, storage, Ownership(storage))
    for step, name in enumerate(names):
        sweeper.keep(step, {"runs": {name}})
        sweeper.delete([f"done/{name}"])
    sweeper.close()
    assert (list_names("runs"), list_names("done")) == ([names[-1]], [])
    assert listed == ["runs"]


@pytest.mark.promise("order-older-driver-goes")
def test_what_a_life_that_is_over_writes_late_goes_with_the_next_step(root: ObjectPath) -> None:
    """By owner generation and step: nothing that is named, later or a newer life's goes."""
    storage = RemoteStorage(root)
    owner = Ownership(storage)
    storage.create(f"owners/{1:012d}", "{}")
    owner.take()
    given_up, named, ahead, newer = (
        f"{step:012d}-{generation:06d}-{attempt}"
        for step, generation, attempt in ((7, 1, 0), (7, 1, 1), (8, 1, 0), (7, 3, 0))
    )
    for name in (given_up, named, ahead, newer):
        (root / "runs" / name / "part").write_bytes(b"rows")

    def left_by(step: int, kept: set[str]) -> list[str]:
        sweeper = Sweeper(storage, storage, owner)
        sweeper.keep(step, {"runs": kept})
        sweeper.close()
        return storage.names("runs")

    assert left_by(7, {named}) == sorted([named, ahead, newer])
    (root / "runs" / given_up / "late").write_bytes(b"rows")
    ours = f"{8:012d}-{owner.generation:06d}-0"
    (root / "runs" / ours / "part").write_bytes(b"rows")
    assert left_by(8, {named, ours}) == sorted([named, ours, newer])
    owner.release()


def test_stop_waits_for_one_answer_only_of_a_store_that_is_away(
    root: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many steps have left something to delete: the next life finds it."""
    asked: list[str] = []
    storage = RemoteStorage(root)
    sweeper = Sweeper(storage, storage, Ownership(storage))

    def unanswered(folder: str) -> list[str]:
        asked.append(folder)
        while not sweeper._closing.is_set():
            time.sleep(0.01)
        raise OSError("no answer")

    monkeypatch.setattr(storage, "names", unanswered)
    for step in range(3):
        sweeper.keep(step, {"runs": ()})
    sweeper.close()
    assert asked == ["runs"]


def test_small_step_asks_for_nothing_that_the_driver_knows(
    root: ObjectPath, answers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes its documents and files; nothing is read back, and nobody waits for a deletion."""
    monkeypatch.setattr(Ownership, "_look_counts", lambda _: True)
    settings = {
        "input_topics": ["in"],
        "output_topic": "out",
        "event_time": "json:at",
        "delay": "10 s",
        "max_offsets_per_trigger": 2,
    }
    # Each batch has a row that is behind the frontier, the only one of its key so far.
    times = [time_s for step in range(20) for time_s in (6 * step, max(0, 6 * step - 30))]
    with LocalTester(settings) as tester:
        monkeypatch.setattr(tester, "_storage", RemoteStorage(root))
        tester.run(
            {"key": f"{number}", "value": f'{{"at": {1_700_000_000_000 + 1_000 * time_s}}}'}
            for number, time_s in enumerate(times)
        )
        assert tester.report().steps == 20
    told = [json.loads(line)[:2] for line in answers.read_text().splitlines()]
    # Folders are listed beside the job: by heartbeats, and for what is to be deleted.
    told = [(method, name.partition(root.key)[2]) for method, name in told if "?" not in name]
    first, last = (told.index(("PUT", f"/done/{step:012d}")) for step in (8, 16))
    asked = {(method, name.split("/")[1]) for method, name in told[first:last] if name}
    # The tester's sink looks for a plan of its own.
    assert {one for one in asked if one[0] != "PUT"} == {("HEAD", "plans")}
    written = {folder for method, folder in asked if method == "PUT"} - {"heartbeats"}
    assert written == {"runs", "staged", "spark", "behind", "frontier", "plans", "done"}


@pytest.mark.promise("order-checkpoint-object-store")
def test_plans_of_batches_stand_there_as_spark_has_them(root: ObjectPath) -> None:
    """Each is written once; an owner that comes too late finds what stands there."""
    storage, where = RemoteStorage(root), SourcePartition("in", 0)
    swept: list[str] = []

    def opened() -> PlanLog:
        return PlanLog(storage, SparkPart(storage), "spark", lambda: None, swept.extend)

    log = opened()
    assert log.newest is None
    assert log.begin({where: 3}) == {where: 3}
    late = opened()
    assert late.begin({where: 4}) == {where: 3}
    for batch_id in range(102):
        log.plan({where: batch_id + 5})
        log.commit()
    assert late.plan({where: 9}).ends == {where: 5}
    assert storage.read("spark/sources/0/0") == '\0v1\n{"in":{"0":3}}'
    assert storage.read("spark/offsets/101").endswith('\n{"in":{"0":106}}')
    assert storage.read("spark/commits/101") == 'v1\n{"nextBatchWatermarkMs":0}'
    assert swept == ["spark/offsets/0", "spark/commits/0"]
    newest = opened().newest
    assert newest is not None
    assert (newest.batch_id, newest.is_committed) == (101, True)
