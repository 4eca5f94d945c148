"""A checkpoint in HDFS, on Hadoop's own namenode and datanode."""

from __future__ import annotations

import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from sequitur.base.retry import Retry
from sequitur.errors import CheckpointError
from sequitur.pipelines.store import hdfs_path
from sequitur.pipelines.store.hdfs_path import HdfsPath
from sequitur.pipelines.store.storage import RemoteStorage, files_in, storage_at
from tests.spark.checkpoint_places import CheckpointPlace
from tests.spark.far_checkpoints import hold_rows_for_a_later_life, take_dead_letters_back
from tests.spark.kill_rounds import Rounds
from tests.support.broker_job import BOTH_WAYS
from tests.support.far_files import sizes_in, write_and_read

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeTopic
    from tests.spark.conftest import Job
    from tests.support.brokers import Broker
    from tests.support.hdfs_cluster import HdfsCluster

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.test_all]
_RACERS = 64
_ROUNDS = int(os.environ.get("SEQUITUR_DRIVER_KILL_ROUNDS", "1"))
"""A fourth as many, and as many in which one life takes over from another; at least one."""
_SEED = int(os.environ.get("SEQUITUR_KILL_SEED", "4"))


@pytest.fixture
def root(hdfs_folder: str) -> HdfsPath:
    found = storage_at(hdfs_folder).location("")
    assert isinstance(found, HdfsPath)
    return found


@pytest.mark.promise("order-checkpoint-hdfs-create")
def test_of_many_that_create_one_document_in_hdfs_one_wins(
    hdfs: HdfsCluster, root: HdfsPath
) -> None:
    """And all find what it wrote, though answers to the renames that decide are lost."""
    storages = [RemoteStorage(root) for _ in range(_RACERS)]
    at_once = threading.Barrier(_RACERS)

    def race(place: int, name: str) -> bool:
        at_once.wait()
        return storages[place].create(name, f"racer {place}")

    with ThreadPoolExecutor(_RACERS) as pool:
        for lost, name in enumerate(("frontier/0", "frontier/1", "frontier/2")):
            hdfs.fault(lost=lost, of="rename2")
            won = [*pool.map(race, range(_RACERS), itertools.repeat(name))]
            assert won.count(True) == 1
            assert storages[0].read(name) == f"racer {won.index(True)}"
            assert hdfs.faults_left() == 0
    assert storages[0].names("frontier") == ["0", "1", "2"]


@pytest.mark.promise("order-checkpoint-hdfs-create")
@pytest.mark.parametrize(("refused", "lost"), [(2, 0), (0, 1), (1, 3)])
@pytest.mark.parametrize("of", ["rename2", "create", "complete"])
def test_document_in_hdfs_whose_answer_is_lost_is_ours(
    hdfs: HdfsCluster, root: HdfsPath, refused: int, lost: int, of: str
) -> None:
    """It is read back: what has our text was created by us, and nobody else's counts as that."""
    storage = RemoteStorage(root)
    for text, wins in (("ours", True), ("another's", False)):
        hdfs.fault(refused=refused, lost=lost, of=of)
        assert storage.create("done/1", text) is wins
        assert hdfs.faults_left() == 0
    assert storage.read("done/1") == "ours"
    hdfs.fault(refused=refused, lost=lost, of=of)
    storage.replace("done/1", "anew")
    assert storage.read("done/1") == "anew"


@pytest.mark.promise("order-checkpoint-hdfs-create")
def test_writer_that_dies_before_its_rename_leaves_nothing_that_is_seen(root: HdfsPath) -> None:
    """What it wrote aside goes with the next life, whose own document is then created."""
    storage = RemoteStorage(root)
    client = root.store.client()
    left = f"/{root.key}/frontier/.7.{uuid4().hex}"
    with client.create(left) as file:
        file.write(b"cut sh")
    assert not storage.exists("frontier/7")
    assert storage.names("frontier") == []
    storage.drop_unfinished("frontier")
    assert sizes_in(root) == {}
    assert storage.create("frontier/7", "whole")


@pytest.mark.promise("order-checkpoint-hdfs-create")
def test_restart_of_the_cluster_is_waited_for(hdfs: HdfsCluster, root: HdfsPath) -> None:
    """By whoever writes a document, and by a task that writes a file; what was there stays."""
    storage = RemoteStorage(root)
    assert storage.create("done/1", "before")
    hdfs.kill()
    with ThreadPoolExecutor(2) as pool:
        created = pool.submit(storage.create, "done/2", "after")
        written = pool.submit((root / "runs" / "rows").write_bytes, b"rows")
        hdfs.start()
        assert created.result()
        written.result()
    assert (storage.read("done/1"), storage.read("done/2")) == ("before", "after")
    assert (root / "runs" / "rows").read_bytes() == b"rows"


@pytest.mark.promise("order-checkpoint-hdfs-create")
def test_cluster_that_does_not_come_back_is_named(
    root: HdfsPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once patience is over, with the document; so is a user without a right to it, at once."""
    monkeypatch.setattr(hdfs_path, "_RETRY", Retry(patience_s=0.2))
    nobody = hdfs_path.hdfs_path("hdfs://127.0.0.1:1/checkpoint", lambda _: None)
    assert nobody is not None
    with pytest.raises(OSError, match=r"hdfs://127.0.0.1:1/checkpoint/done/1: .*refused"):
        RemoteStorage(nobody).read("done/1")
    monkeypatch.setenv("HADOOP_USER_NAME", "somebody-else")
    other = storage_at(str(root)).location("")
    assert isinstance(other, HdfsPath)
    with pytest.raises(PermissionError, match=r"AccessControlException: .*somebody-else"):
        RemoteStorage(other).create("done/1", "text")


@pytest.mark.promise("order-checkpoint-hdfs-create")
def test_name_service_of_several_namenodes_is_asked_in_turn(
    hdfs: HdfsCluster, root: HdfsPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Hadoop's own settings tell them; without a name, it is that of these, too."""
    told = {
        "fs.defaultFS": "hdfs://service",
        "dfs.ha.namenodes.service": "one, two",
        "dfs.namenode.rpc-address.service.one": "127.0.0.1:1",
        "dfs.namenode.rpc-address.service.two": f"127.0.0.1:{hdfs.port}",
    }
    properties = (
        f"<property><name>{a}</name><value>{b}</value></property>" for a, b in told.items()
    )
    (tmp_path / "hdfs-site.xml").write_text(f"<configuration>{''.join(properties)}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    for uri in (f"hdfs://service/{root.key}", f"hdfs:///{root.key}"):
        place = storage_at(uri).location("")
        assert isinstance(place, HdfsPath)
        assert str(place) == f"hdfs://service/{root.key}"
        RemoteStorage(place).replace("done/1", uri)
        assert RemoteStorage(root).read("done/1") == uri


@pytest.mark.promise("order-checkpoint-hdfs-create")
def test_files_in_hdfs_are_written_and_read_by_whoever_is_told_of_them(root: HdfsPath) -> None:
    """In another process, too: where they are is pickled, with how to get there."""
    write_and_read(root)
    large = os.urandom(20 << 20)
    (root / "large").write_bytes(large)
    assert (root / "large").read_bytes() == large
    assert [path.name for path in files_in(root)] == ["large", "runs"]
    root.delete_all()
    assert not root.exists()
    assert files_in(root) == []


@pytest.fixture
def far(job: Job, hdfs_folder: str) -> Job:
    return job.with_settings(checkpoint=f"{hdfs_folder}/job")


@pytest.mark.promise("order-checkpoint-hdfs-create")
@BOTH_WAYS
def test_rows_held_in_hdfs_go_out_in_later_lives(
    far: Job, hdfs: HdfsCluster, way: dict[str, int]
) -> None:
    """In order, and are shown until then, though requests are cut off, and answers to others."""
    hold_rows_for_a_later_life(far.with_settings(**way), hdfs)


@pytest.mark.promise("order-checkpoint-hdfs-create")
def test_topology_runs_on_hdfs_and_takes_its_dead_letters_back(far: Job, hdfs: HdfsCluster) -> None:
    """Its states, events that wait, and requests to replay are there, too."""
    take_dead_letters_back(far, hdfs)


@pytest.mark.promise("order-checkpoint-hdfs-create")
@pytest.mark.kill
@pytest.mark.timeout(600 + 120 * _ROUNDS)
def test_killing_the_driver_of_a_checkpoint_on_hdfs_loses_doubles_and_disorders_nothing(
    broker: Broker, make_topic: MakeTopic, hdfs: HdfsCluster
) -> None:
    """While the cluster cuts off requests, and answers to requests that it has done."""
    place = CheckpointPlace.on_hdfs(hdfs)
    rounds = Rounds.on(broker.bootstrap_servers, make_topic(partitions=4), place, Random(_SEED))
    folders = ("owners", "staged", "runs", "frontier", "done")
    rounds.disturb = lambda: hdfs.fault(
        refused=3, lost=3, slow_s=0.05, of=f"/{rounds.random.choice(folders)}/"
    )
    for _ in range(_ROUNDS // 4):
        rounds.overtake()
    report = rounds.outlive(max(1, _ROUNDS // 4))
    released, late, quarantined = rounds.check(report)
    counted = (report["released"], report["late"], report["quarantined"])
    assert (len(released), len(late), len(quarantined)) == counted
    hdfs.fault()


@pytest.mark.promise("order-checkpoint-hdfs-create")
def test_cluster_with_kerberos_is_refused_by_name() -> None:
    settings = {"hadoop.security.authentication": "kerberos"}
    with pytest.raises(CheckpointError, match="hdfs://name/job: its cluster asks for kerberos"):
        hdfs_path.hdfs_path("hdfs://name/job", settings.get)
