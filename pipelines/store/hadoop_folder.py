"""A checkpoint's folder as a Spark session reaches it, and what Spark writes there."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from sequitur.errors import CheckpointError
from sequitur.pipelines.store import durable
from sequitur.pipelines.store.hdfs_path import HdfsPath, hdfs_path
from sequitur.pipelines.store.object_path import object_path
from sequitur.pipelines.store.storage import LOCAL_SCHEME, LocalStorage, RemoteStorage, local_path
from sequitur.pipelines.submitted import jnu_encoding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from sequitur.pipelines.store.storage import SparkFolder, Storage


def open_storage(spark: SparkSession, location: str) -> Storage:
    """Return the folder at a path or URI, as the session's settings understand it.

    On a cluster a local folder is one that all machines share: Spark itself needs that, too.
    """
    setting: Callable[[str], str | None] = _hadoop_conf(spark).get
    found = object_path(location, setting) or hdfs_path(location, setting)
    if found is None:
        if (path := local_path(location)) is not None:
            check_nameable(spark, str(path), "checkpoint")
        root = HadoopFolder(spark, location).root
        if root.startswith(LOCAL_SCHEME):
            return LocalStorage(Path(root.removeprefix(LOCAL_SCHEME)))
        found = hdfs_path(root, setting)  # if the settings say that the path is in HDFS
        if found is None:
            raise CheckpointError(
                f"checkpoint {root}: it must be a folder that all machines reach by path, in an "
                "object store, or in HDFS"
            )
    return RemoteStorage(found)


def open_spark_folder(spark: SparkSession, storage: Storage) -> SparkFolder:
    """Return the same folder as Spark reaches it, for Spark's own files."""
    if isinstance(storage.location(""), Path | HdfsPath):
        return storage
    with _hadoops_errors(storage.root):
        return HadoopFolder(spark, storage.root)


def check_nameable(spark: SparkSession, path: str, what: str) -> None:
    """Check that Java can name a file: it would write to another, or find none.

    Raises:
        CheckpointError: It cannot.
    """
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - the way to Java
    try:
        jvm.java.io.File(path).toPath()
    except (Py4JJavaError, PySparkException) as error:
        raise CheckpointError(
            f"{what} {path}: Java, which has to name it, cannot in {jnu_encoding(jvm)}: "
            "set LC_ALL to one of UTF-8, such as C.UTF-8"
        ) from error


class HadoopFolder:
    """A folder on any file system of Hadoop's, as Spark writes it.

    What it has closed, it takes for kept: how long that takes to reach a disk is the file system's.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - the way to Hadoop's file systems
        conf = _hadoop_conf(spark)
        self._jvm = jvm
        path = jvm.org.apache.hadoop.fs.Path(root)
        self._root = path.getFileSystem(conf).makeQualified(path)
        streaming = jvm.org.apache.spark.sql.execution.streaming
        self._files = streaming.checkpointing.CheckpointFileManager.create(self._root, conf)

    @property
    def root(self) -> str:
        return str(self._root.toString())

    def exists(self, name: str) -> bool:
        with _hadoops_errors(self.root):
            return bool(self._files.exists(self._path(name)))

    def names(self, folder: str) -> list[str]:
        if not self.exists(folder):
            return []
        with _hadoops_errors(self.root):
            found = [one.getPath().getName() for one in self._files.list(self._path(folder))]
        return sorted(str(name) for name in found if not name.startswith("."))

    def read(self, name: str) -> str:
        with _hadoops_errors(self.root):
            stream = self._files.open(self._path(name))
            try:
                raw = self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)
            finally:
                stream.close()
        return bytes(raw).decode()

    def delete(self, name: str) -> None:
        with _hadoops_errors(self.root):
            self._files.delete(self._path(name))

    def drop_unfinished(self, folder: str) -> None:
        if not self.exists(folder):
            return
        with _hadoops_errors(self.root):
            for one in self._files.list(self._path(folder)):
                if durable.is_unfinished(str(one.getPath().getName())):
                    self._files.delete(one.getPath())

    def sync(self, *names: str) -> None:
        del names

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.root}/{name}" if name else self.root)


def _hadoop_conf(spark: SparkSession) -> Any:
    java_session: Any = spark._jsparkSession  # noqa: SLF001 - the way to Hadoop's settings
    return java_session.sessionState().newHadoopConf()


@contextlib.contextmanager
def _hadoops_errors(root: str) -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        told = str(error.java_exception.toString()).strip()
        raise CheckpointError(
            f"checkpoint {root}: Spark, which writes its own part there, does not reach it: {told}"
            ". Has it the jars for that store, and in spark.hadoop.* its endpoint, region and "
            "credentials?"
        ) from error
