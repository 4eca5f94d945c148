"""Where a checkpoint stands: on a path that all machines reach, in an object store, or in HDFS."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from py4j.protocol import Py4JJavaError

from sequitur.pipelines._errors import CheckpointError
from sequitur.pipelines.store import durable
from sequitur.pipelines.store.hdfs_path import HdfsPath, hdfs_path, settings_of_environment
from sequitur.pipelines.store.object_path import object_path
from sequitur.pipelines.store.remote_storage import RemoteStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from sequitur.pipelines.store.files import Location

_LOCAL_SCHEME: Final = "file:"


class SparkFolder(Protocol):
    """A folder, as far as is needed where Spark writes. What is in it is named from there.

    Files that begin with a dot are temporary: nobody is shown them.
    """

    @property
    def root(self) -> str:
        """The folder as a URI."""

    def exists(self, name: str) -> bool:
        """Tell whether there is such a file or folder."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, in order; none where there is no such folder."""

    def read(self, name: str) -> str:
        """Read a file."""

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with all that is in it; it need not be there."""

    def sync(self, *names: str) -> None:
        """Return once files, and folders with all in them, outlast a power cut.

        What is missing is passed over.
        """


class Storage(SparkFolder, Protocol):
    """A folder in which a checkpoint is, such as `frontier/000000000007`."""

    def location(self, name: str) -> Location:
        """Return where something in it is, for `store.files`."""

    def create(self, name: str, text: str) -> bool:
        """Write a file whole or not at all, and never over one; whether it was not there before.

        When this returns, the file outlasts a power cut.
        """

    def replace(self, name: str, text: str) -> None:
        """Write a file whole, over what is there; nothing may rest on it."""

    def make_folder(self, name: str) -> None:
        """Make a folder that outlasts a power cut; it may be there."""


def open_storage(spark: SparkSession, location: str) -> Storage:
    """Return the folder at a path or URI, as the session's settings understand it.

    On a cluster a local folder is one that all machines share: Spark itself needs that, too.

    Raises:
        CheckpointError: It is neither on a path nor in an object store or HDFS.
    """
    setting = setting_of(spark)
    found = object_path(location, setting) or hdfs_path(location, setting)
    if found is None:
        root = HadoopFolder(spark, location).root
        if root.startswith(_LOCAL_SCHEME):
            return LocalStorage(Path(root.removeprefix(_LOCAL_SCHEME)))
        found = hdfs_path(root, setting)  # where the settings say that a path is there
        if found is None:
            raise CheckpointError(
                f"checkpoint {root}: it has to be a folder that all machines reach by path, in an "
                "object store, or in HDFS"
            )
    return RemoteStorage(found)


def open_spark_folder(spark: SparkSession, storage: Storage) -> SparkFolder:
    """Return the same folder as Spark reaches it, for what Spark keeps there by itself.

    Raises:
        CheckpointError: Spark does not reach it.
    """
    if isinstance(storage.location(""), Path | HdfsPath):
        return storage
    with _hadoops_errors(storage.root):
        return HadoopFolder(spark, storage.root)


def setting_of(spark: SparkSession) -> Callable[[str], str | None]:
    """Return what gives Hadoop's settings in a session, those of its own included."""
    java_session: Any = spark._jsparkSession  # noqa: SLF001 - the way to Hadoop's settings
    conf = java_session.sessionState().newHadoopConf()
    return lambda name: conf.get(name)  # noqa: PLW0108 - a method of Java's cannot be typed


def local_path(location: str) -> Path | None:
    """Return the local path of a path or URI; None of one that is not local.

    Without a session: what a path without a scheme means to Spark, its settings may change.
    """
    # Hadoop writes file:/path, with one slash.
    local = location.removeprefix("file://").removeprefix(_LOCAL_SCHEME)
    return None if "://" in local else Path(local).absolute()


def location_of(location: str) -> Location | None:
    """Return where a path or URI is, without a session; None where only Hadoop reaches it.

    What a store asks for is taken from the environment, as its own tools take it.
    """
    return (
        local_path(location)
        or object_path(location, lambda _: None)
        or hdfs_path(location, settings_of_environment())
    )


class LocalStorage:
    """A folder that programs reach by path.

    Args:
        root: The folder; it need not be there yet.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    @property
    def root(self) -> str:
        """See `Storage`."""
        return f"{_LOCAL_SCHEME}{self._root}"

    def location(self, name: str) -> Path:
        """See `Storage`."""
        return self._root / name

    def exists(self, name: str) -> bool:
        """See `Storage`."""
        return self.location(name).exists()

    def names(self, folder: str) -> list[str]:
        """See `Storage`."""
        try:
            found = [path.name for path in self.location(folder).iterdir()]
        except FileNotFoundError:
            return []
        return sorted(name for name in found if not name.startswith("."))

    def read(self, name: str) -> str:
        """See `Storage`."""
        return self.location(name).read_text()

    def create(self, name: str, text: str) -> bool:
        """See `Storage`."""
        return durable.create(self.location(name), text)

    def replace(self, name: str, text: str) -> None:
        """See `Storage`."""
        durable.replace(self.location(name), text)

    def delete(self, name: str) -> None:
        """See `Storage`."""
        path = self.location(name)
        try:
            path.unlink()
        except FileNotFoundError:
            return
        except (IsADirectoryError, PermissionError):  # the latter is what macOS says of a folder
            shutil.rmtree(path, ignore_errors=True)

    def make_folder(self, name: str) -> None:
        """See `Storage`."""
        durable.make_folder(self.location(name))

    def sync(self, *names: str) -> None:
        """See `Storage`."""
        durable.sync_all(self.location(name) for name in names)


class HadoopFolder:
    """A folder on any file system of Hadoop's, as Spark writes it.

    What it has closed, it takes for kept: how long that takes to reach a disk is the file system's.

    Args:
        spark: The session; it knows the file systems.
        root: The folder, as a path or URI; it need not be there yet.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - the way to Hadoop's file systems
        java_session: Any = spark._jsparkSession  # noqa: SLF001
        conf = java_session.sessionState().newHadoopConf()
        self._jvm = jvm
        self._conf = conf
        path = jvm.org.apache.hadoop.fs.Path(root)
        self._root = path.getFileSystem(conf).makeQualified(path)
        streaming = jvm.org.apache.spark.sql.execution.streaming
        self._files = streaming.checkpointing.CheckpointFileManager.create(self._root, conf)

    @property
    def root(self) -> str:
        """See `SparkFolder`."""
        return str(self._root.toString())

    def exists(self, name: str) -> bool:
        """See `SparkFolder`."""
        with _hadoops_errors(self.root):
            return bool(self._files.exists(self._path(name)))

    def names(self, folder: str) -> list[str]:
        """See `SparkFolder`."""
        if not self.exists(folder):
            return []
        with _hadoops_errors(self.root):
            found = [one.getPath().getName() for one in self._files.list(self._path(folder))]
        return sorted(str(name) for name in found if not name.startswith("."))

    def read(self, name: str) -> str:
        """See `SparkFolder`."""
        with _hadoops_errors(self.root):
            stream = self._files.open(self._path(name))
            try:
                raw = self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)
            finally:
                stream.close()
        return bytes(raw).decode()

    def delete(self, name: str) -> None:
        """See `SparkFolder`."""
        with _hadoops_errors(self.root):
            self._files.delete(self._path(name))

    def sync(self, *names: str) -> None:
        """See `SparkFolder`."""
        del names

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.root}/{name}" if name else self.root)


@contextlib.contextmanager
def _hadoops_errors(root: str) -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        told = str(error.java_exception.toString()).partition("\n")[0]
        raise CheckpointError(
            f"checkpoint {root}: Spark, which writes its own part there, does not reach it: {told}"
            ". Has it the jars for that store, and in spark.hadoop.* its endpoint, region and "
            "credentials?"
        ) from error
