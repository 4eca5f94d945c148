"""Files in HDFS, in driver and tasks alike, by hdfs-native, a client without a JVM.

A file is written aside, under a name that nobody else has, on to the disks of its datanodes; then
it is renamed. Where nothing may be written over, a namenode renames for one writer alone. So what
has a name is whole. A file that is created under its own name is seen empty, and stays empty if
its writer dies.

A request is repeated while the cluster does not answer, or cannot yet. One that writes begins
again, under another name, so a late answer to an earlier one changes nothing.
"""

from __future__ import annotations

import functools
import io
import os
import pwd
import re
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

import pyarrow as pa

from sequitur.base.extras import load
from sequitur.base.retry import Retry
from sequitur.errors import CheckpointError
from sequitur.pipelines.store.remote_path import RemotePath, parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


HDFS_SCHEME: Final = "hdfs"
_PORT: Final = 8020
_USER: Final = "HADOOP_USER_NAME"
_RETRY: Final = Retry(patience_s=120.0)
"""A cluster that restarts, or is in safe mode, is asked again for so long."""
_PIECE_BYTES: Final = 1 << 20
_IN_MEMORY_BYTES: Final = 8 << 20
"""A larger file is on the local disk until it is closed: it may have to be written twice."""
_OF_A_NAME_SERVICE: Final = (
    "dfs.ha.namenodes", "dfs.client.failover.resolve-needed", "dfs.client.failover.resolver.useFQDN"
)  # fmt: skip
_OF_THE_CLIENT: Final = (
    "dfs.client.use.datanode.hostname", "dfs.client.socket-timeout", "dfs.data.transfer.protection",
    "dfs.client.block.write.replace-datanode-on-failure.enable",
    "dfs.client.block.write.replace-datanode-on-failure.policy",
    "dfs.client.block.write.replace-datanode-on-failure.best-effort",
)  # fmt: skip
_SAID: Final = re.compile(r'RPCError\("(?:[\w$]+\.)*([\w$]+)", "(.*?)(?:\\n|"\)$|$)')
_FINAL: Final = re.compile(r"QuotaExceeded|InvalidPath|UnsupportedFeature|SASL|GSSAPI")
"""Refusals that another try does not change."""
_DENIED: Final = "AccessControlException"
_HERE: Final = (FileNotFoundError, FileExistsError, IsADirectoryError)
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, order=True)
class Cluster:
    uri: str  # the namenode, or a name service of several
    user: str  # whose files they are
    settings: tuple[tuple[str, str], ...] = ()  # hadoop's, as far as its client knows them

    @functools.lru_cache  # noqa: B019 - one a process
    def client(self) -> Any:
        """Return the cluster's client; there is one for each process."""
        hdfs = load("hdfs_native", "a checkpoint in HDFS", error=CheckpointError)
        if self.user != _user():
            # A task's process may be another user's; the client asks the environment.
            os.environ[_USER] = self.user
        # The settings say all it needs: Hadoop's folder on a task's machine may differ.
        return hdfs.Client(self.uri, dict(self.settings), config_dir=os.devnull)


class HdfsPath(RemotePath[Cluster]):
    __slots__ = ()

    def iterdir(self) -> Iterator[HdfsPath]:
        try:
            found = self._ask(lambda client: [*client.list_status(self._path)])
        except FileNotFoundError:
            found = []
        return iter(sorted(HdfsPath(self.store, one.path.lstrip("/")) for one in found))

    def exists(self) -> bool:
        try:
            self._ask(lambda client: client.get_file_info(self._path))
        except FileNotFoundError:
            return False
        return True

    def get(self) -> bytes:
        return self.read_bytes()

    def put(self, content: bytes) -> None:
        self._write(io.BytesIO(content), overwrite=True)

    def put_new(self, content: bytes) -> bool:
        try:
            self._write(io.BytesIO(content), overwrite=False)
        except FileExistsError:
            return False
        return True

    def delete_all(self) -> None:
        self._ask(lambda client: client.delete(self._path, True))

    def drop_unfinished(self) -> None:
        """Delete unfinished files; a writer that is alive writes such a file anew."""
        for path in self.iterdir():
            if path.name.startswith("."):
                path.unlink()

    def open_input(self) -> pa.NativeFile:
        return pa.PythonFile(_Input(self), mode="r")

    def open_output(self) -> pa.NativeFile:
        return pa.PythonFile(_Output(self), mode="w")

    @property
    def _path(self) -> str:
        return f"/{self.key}"

    def _write(self, content: IO[bytes], *, overwrite: bool) -> None:
        def write(client: Any) -> None:
            aside = (self.parent / f".{self.name}.{uuid4().hex}")._path  # noqa: SLF001 - our own
            try:
                content.seek(0)
                file = client.create(aside)
                while piece := content.read(_PIECE_BYTES):
                    file.write(piece)
                file.hsync()
                file.close()
            except (FileExistsError, FileNotFoundError) as error:
                # An answer was lost, or our file was taken for that of a dead writer.
                raise OSError(str(error)) from error
            try:
                client.rename(aside, self._path, overwrite)
            except FileNotFoundError as error:  # likewise
                raise OSError(str(error)) from error
            except FileExistsError:
                client.delete(aside)
                raise

        self._ask(write)

    def _ask(self, asked: Callable[[Any], _Answer]) -> _Answer:
        """Ask the cluster, and again while it does not answer or is not ready."""
        try:
            return _RETRY.run(lambda: asked(self.store.client()), _passes)
        except _HERE as error:
            raise type(error)(f"{self}: {_in_words(error)}") from error
        except (OSError, RuntimeError) as error:
            if _DENIED in str(error):
                raise PermissionError(
                    f"{self}: {_in_words(error)}. The user is that of HADOOP_USER_NAME, or of "
                    "the process"
                ) from error
            raise OSError(f"{self}: {_in_words(error)}") from error


class _Input(io.RawIOBase):
    """A file as pyarrow reads it: a range at a time, each asked for again if it fails."""

    def __init__(self, path: HdfsPath) -> None:
        self._path = path
        self._file = path._ask(lambda client: client.read(path._path))  # noqa: SLF001 - our own
        self._at = 0

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, len(self._file) - self._at)
        begin, size = self._at, left if size is None or size < 0 else min(size, left)
        if not size:
            return b""
        found: bytes = self._path._ask(lambda _: self._file.read_range(begin, size))  # noqa: SLF001
        self._at += len(found)
        return found

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (0, self._at, len(self._file))[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


class _Output(tempfile.SpooledTemporaryFile[bytes]):
    """A file as pyarrow writes it: it is kept here until it is closed, and is written then."""

    def __init__(self, path: HdfsPath) -> None:
        super().__init__(_IN_MEMORY_BYTES)
        self._path = path

    def close(self) -> None:
        try:
            if not self.closed:
                self._path._write(self, overwrite=True)  # noqa: SLF001 - our own
        finally:
            super().close()


def hdfs_path(location: str, setting: Callable[[str], str | None]) -> HdfsPath | None:
    """Return the place of a URI in HDFS; None if it is elsewhere."""
    if not location.startswith(f"{HDFS_SCHEME}://"):
        return None
    if location.startswith(f"{HDFS_SCHEME}:///"):
        location = f"{(setting('fs.defaultFS') or '').rstrip('/')}{location[len('hdfs://') :]}"
    _, place, key = parts_of(location)
    if (way := setting("hadoop.security.authentication")) not in {None, "simple"}:
        raise CheckpointError(
            f"checkpoint {location}: its cluster asks for {way}, but a checkpoint can be in HDFS "
            "only where a user's name is enough: keep it on a path or in an object store"
        )
    names = [f"{name}.{place}" for name in _OF_A_NAME_SERVICE]
    namenodes = [one.strip() for one in (setting(names[0]) or "").split(",") if one]
    names += [f"dfs.namenode.rpc-address.{place}.{one}" for one in namenodes]
    told = {name: said for name in (*names, *_OF_THE_CLIENT) if (said := setting(name))}
    if namenodes:
        told[names[0]] = ",".join(namenodes)
    elif ":" not in place:
        place = f"{place}:{_PORT}"
    # The client asks each namenode once; we decide how long to ask all of them again.
    told["dfs.client.failover.max.attempts"] = str(max(0, len(namenodes) - 1))
    return HdfsPath(Cluster(f"{HDFS_SCHEME}://{place}", _user(), tuple(told.items())), key)


def settings_of_environment() -> Callable[[str], str | None]:
    """Return a function that gives Hadoop's settings without a session, from `HADOOP_CONF_DIR`."""
    folder = os.environ.get("HADOOP_CONF_DIR")
    home = os.environ.get("HADOOP_HOME")
    place = Path(folder) if folder else Path(home, "etc", "hadoop") if home else None
    found: dict[str, str] = {}
    for name in ("core-site.xml", "hdfs-site.xml"):
        if place is not None and (file := place / name).exists():
            for one in ET.parse(file).getroot().iter("property"):  # noqa: S314 - the user's own
                found[one.findtext("name", "").strip()] = one.findtext("value", "").strip()
    return found.get


def _user() -> str:
    user = os.getuid()
    try:
        return os.environ.get(_USER) or pwd.getpwuid(user).pw_name
    except KeyError:
        raise CheckpointError(
            f"the user {user} has no entry in /etc/passwd, and so no name in Hadoop: set {_USER}"
        ) from None


def _passes(error: Exception) -> str | None:
    if isinstance(error, _HERE) or not isinstance(error, OSError | RuntimeError):
        return None
    text = str(error)
    return None if _DENIED in text or _FINAL.search(text) else text


def _in_words(error: Exception) -> str:
    """Return the cluster's message in one line."""
    text = str(error)
    if said := _SAID.search(text):
        return ": ".join(said.groups())
    return text.partition("\n")[0]
