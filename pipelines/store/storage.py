"""Where a checkpoint stands: on a path that all machines reach, or where only Hadoop reaches."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError

from sequitur.pipelines.store import durable
from sequitur.pipelines.store.part_files import is_published

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOCAL_SCHEME: Final = "file:"
_IS_THERE: Final = "FileAlreadyExistsException"


class Storage(Protocol):
    """A folder. What is in it is named from there: `frontier/000000000007`.

    Files that begin with a dot are temporary: nobody is shown them.
    """

    @property
    def root(self) -> str:
        """The folder as a URI."""

    def local(self, name: str) -> Path | None:
        """Return the local path of something in it; None where only Hadoop reaches it."""

    def exists(self, name: str) -> bool:
        """Tell whether there is such a file or folder."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, in order; none where there is no such folder."""

    def read(self, name: str) -> str:
        """Read a file."""

    def create(self, name: str, text: str) -> bool:
        """Write a file whole or not at all, and never over one; whether it was not there before.

        When this returns, the file outlasts a power cut.
        """

    def replace(self, name: str, text: str) -> None:
        """Write a file whole, over what is there; nothing may rest on it."""

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with all that is in it; it need not be there."""

    def make_folder(self, name: str) -> None:
        """Make a folder that outlasts a power cut; it may be there."""

    def sync(self, *names: str) -> None:
        """Return once files, and folders with all in them, outlast a power cut.

        What is missing is passed over.
        """

    def size_bytes(self, folder: str) -> int:
        """Return size of all files in a folder."""

    def parquet_rows(self, folder: str) -> dict[str, int]:
        """Return the names of the published Parquet files in a folder, with the rows of each."""


def open_storage(spark: SparkSession, location: str) -> Storage:
    """Return the folder at a path or URI, as the session's settings understand it.

    On a cluster a local folder is one that all machines share: Spark itself needs that, too.
    """
    hadoop = HadoopStorage(spark, location)
    if hadoop.root.startswith(_LOCAL_SCHEME):
        return LocalStorage(Path(hadoop.root.removeprefix(_LOCAL_SCHEME)))
    return hadoop


def local_path(location: str) -> Path | None:
    """Return the local path of a path or URI; None of one that is not local.

    Without a session: what a path without a scheme means to Spark, its settings may change.
    """
    # Hadoop writes file:/path, with one slash.
    local = location.removeprefix("file://").removeprefix(_LOCAL_SCHEME)
    return None if "://" in local else Path(local).absolute()


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

    def local(self, name: str) -> Path:
        """See `Storage`."""
        return self._root / name

    def exists(self, name: str) -> bool:
        """See `Storage`."""
        return self.local(name).exists()

    def names(self, folder: str) -> list[str]:
        """See `Storage`."""
        try:
            found = [path.name for path in self.local(folder).iterdir()]
        except FileNotFoundError:
            return []
        return sorted(name for name in found if not name.startswith("."))

    def read(self, name: str) -> str:
        """See `Storage`."""
        return self.local(name).read_text()

    def create(self, name: str, text: str) -> bool:
        """See `Storage`."""
        return durable.create(self.local(name), text)

    def replace(self, name: str, text: str) -> None:
        """See `Storage`."""
        durable.replace(self.local(name), text)

    def delete(self, name: str) -> None:
        """See `Storage`."""
        path = self.local(name)
        try:
            path.unlink()
        except FileNotFoundError:
            return
        except (IsADirectoryError, PermissionError):  # the latter is what macOS says of a folder
            shutil.rmtree(path, ignore_errors=True)

    def make_folder(self, name: str) -> None:
        """See `Storage`."""
        durable.make_folder(self.local(name))

    def sync(self, *names: str) -> None:
        """See `Storage`."""
        durable.sync_all(self.local(name) for name in names)

    def size_bytes(self, folder: str) -> int:
        """See `Storage`."""
        return sum(path.stat().st_size for path in self.local(folder).rglob("*") if path.is_file())

    def parquet_rows(self, folder: str) -> dict[str, int]:
        """See `Storage`."""
        return {
            name: pq.read_metadata(self.local(folder) / name).num_rows
            for name in self.names(folder)
            if is_published(name)
        }


class HadoopStorage:
    """A folder on any file system of Hadoop's, written by Spark's own checkpoint file manager.

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
        """See `Storage`."""
        return str(self._root.toString())

    def local(self, name: str) -> None:
        """See `Storage`."""
        del name

    def exists(self, name: str) -> bool:
        """See `Storage`."""
        return bool(self._files.exists(self._path(name)))

    def names(self, folder: str) -> list[str]:
        """See `Storage`."""
        if not self.exists(folder):
            return []
        names = (str(status.getPath().getName()) for status in self._files.list(self._path(folder)))
        return sorted(name for name in names if not name.startswith("."))

    def read(self, name: str) -> str:
        """See `Storage`."""
        stream = self._files.open(self._path(name))
        try:
            raw = self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)
        finally:
            stream.close()
        return bytes(raw).decode()

    def create(self, name: str, text: str) -> bool:
        """See `Storage`."""
        if self.exists(name):
            return False
        try:
            self._write(name, text, overwrite=False)
        except Py4JJavaError as error:
            if _IS_THERE in str(error.java_exception):
                return False
            raise
        return True

    def replace(self, name: str, text: str) -> None:
        """See `Storage`."""
        self._write(name, text, overwrite=True)

    def delete(self, name: str) -> None:
        """See `Storage`."""
        self._files.delete(self._path(name))

    def make_folder(self, name: str) -> None:
        """See `Storage`."""
        self._files.mkdirs(self._path(name))

    def sync(self, *names: str) -> None:
        """See `Storage`."""
        del names

    def size_bytes(self, folder: str) -> int:
        """See `Storage`."""
        path = self._path(folder)
        return int(path.getFileSystem(self._conf).getContentSummary(path).getLength())

    def parquet_rows(self, folder: str) -> dict[str, int]:
        """See `Storage`."""
        hadoop = self._jvm.org.apache.parquet.hadoop
        found = {}
        for name in filter(is_published, self.names(folder)):
            file = hadoop.util.HadoopInputFile.fromPath(self._path(f"{folder}/{name}"), self._conf)
            reader = hadoop.ParquetFileReader.open(file)
            try:
                found[name] = int(reader.getRecordCount())
            finally:
                reader.close()
        return found

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.root}/{name}" if name else self.root)

    def _write(self, name: str, text: str, *, overwrite: bool) -> None:
        stream = self._files.createAtomic(self._path(name), overwrite)
        try:
            stream.write(text.encode())
        except BaseException:
            stream.cancel()
            raise
        stream.close()
