"""Where a job's checkpoint stands in tests: what the job is told, and what looks into it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self
from uuid import uuid4

from sequitur.errors import OwnershipError
from sequitur.pipelines.store.object_path import object_path
from sequitur.pipelines.store.ownership import refuse_if_owned
from sequitur.pipelines.store.storage import LocalStorage, RemoteStorage, storage_at
from tests.support.s3_server import BUCKET, S3Server

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from random import Random

    from sequitur.pipelines.store.storage import SparkFolder, Storage
    from tests.support.hdfs_cluster import HdfsCluster

_FILE_SYSTEM: Final = {
    # Hadoop's way to S3 is 690 MB of jars. Spark's own part of a checkpoint goes through Hadoop's
    # interface to a folder instead, under the same name; ours goes to the server.
    "spark.hadoop.fs.s3a.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
    "spark.hadoop.fs.viewfs.overload.scheme.target.file.impl": (
        "org.apache.hadoop.fs.LocalFileSystem"
    ),
}
FILE_MANAGER: Final = {
    # Hadoop's own default for the other of its two interfaces names a class of those jars.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}


def sparks_part_of_s3(folder: Path) -> dict[str, str]:
    """Return Spark's settings by which it writes its part of the bucket to a folder."""
    mount = f"spark.hadoop.fs.viewfs.mounttable.{BUCKET}.linkMergeSlash"
    return {**_FILE_SYSTEM, mount: folder.as_uri()}


@dataclass(frozen=True, slots=True)
class CheckpointPlace:
    """A place for a checkpoint.

    Attributes:
        uri: As the job is told it.
        ours: What the job writes itself.
        sparks: What Spark writes.
        options: Settings of Spark by which the job gets there.
        poll_s: How long to wait between two looks.
    """

    uri: str
    ours: Storage
    sparks: SparkFolder
    options: Mapping[str, str] = field(default_factory=dict)
    poll_s: float = 0.005

    @classmethod
    def on_path(cls, folder: Path) -> Self:
        storage = LocalStorage(folder)
        return cls(str(folder), storage, storage)

    @classmethod
    def on_s3(cls, server: S3Server, sparks: Path) -> Self:
        """Return a folder of its own on an S3 server, with Spark's part below a local one."""
        name = f"{uuid4().hex}/job"
        uri = f"s3a://{BUCKET}/{name}"
        sparks.mkdir()
        found = object_path(uri, server.settings().get)
        assert found is not None
        hadoop = {f"spark.hadoop.{key}": told for key, told in server.settings().items()}
        options = {**sparks_part_of_s3(sparks), **FILE_MANAGER, **hadoop}
        # A look costs the server, which the job shares, a hundred times that of a look into a path.
        return cls(uri, RemoteStorage(found), LocalStorage(sparks / name), options, poll_s=0.1)

    @classmethod
    def on_hdfs(cls, cluster: HdfsCluster) -> Self:
        uri = f"{cluster.uri}/{uuid4().hex}/job"
        storage = storage_at(uri)
        return cls(uri, storage, storage, poll_s=0.02)


def may_be_taken(storage: Storage, *, watches: bool = True) -> bool:
    """Whether a driver that is started now would be let in, or would at least watch its owner."""
    try:
        refuse_if_owned(storage, watches=watches)
    except OwnershipError:
        return False
    return True


def disturb(server: S3Server, random: Random) -> None:
    """Have the server refuse requests of one kind, lose answers to them, and be slow."""
    folder = random.choice(["owners", "staged", "runs", "frontier", "processed", "done"])
    server.fault(refused=4, lost=2, slow_s=0.1, of=f"/{folder}/")
