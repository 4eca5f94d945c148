"""Files that are reached over the network alone: named like files in folders, on a path or not.

A place is pickled into tasks, with what it takes to get there.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import pwd
import re
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeVar
from uuid import uuid4

import pyarrow as pa

from sequitur.base.extras import load
from sequitur.base.retry import Retry
from sequitur.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class Store(Protocol):
    """What files are in, and how to reach it."""

    @property
    def uri(self) -> str:
        """Its name, as a URI."""


_Store = TypeVar("_Store", bound=Store)


@dataclass(frozen=True, slots=True, order=True)
class RemotePath(Generic[_Store]):
    """A file or folder, with those of a path's methods that are needed."""

    store: _Store
    key: str

    def __str__(self) -> str:
        return f"{self.store.uri}/{self.key}"

    def __truediv__(self, name: str) -> Self:
        return type(self)(self.store, f"{self.key}/{name}" if self.key else str(name))

    @property
    def name(self) -> str:
        """The last part of its name."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> Self:
        """The folder it is in."""
        return type(self)(self.store, self.key.rpartition("/")[0])

    def read_bytes(self) -> bytes:
        """Return what is in it, as tasks read it."""
        with self.open_input() as file:
            content: bytes = file.read()
        return content

    def write_bytes(self, content: bytes) -> None:
        """Write the file whole, as tasks write it, and replace what is there."""
        with self.open_output() as file:
            file.write(content)

    def unlink(self, *, missing_ok: bool = True) -> None:
        """Delete the file, if it is there."""
        del missing_ok
        self.delete_all()

    def delete_all(self) -> None:
        """Delete the file, and all files in a folder of this name."""
        raise NotImplementedError

    def delete_files(self, names: Sequence[str]) -> None:
        """Delete files of this folder, which need not be there."""
        for name in names:
            (self / name).delete_all()

    def delete_folders(self, names: Sequence[str]) -> None:
        """Delete folders of this folder, with all that is in them."""
        self.delete_files(names)

    def drop_unfinished(self) -> None:
        """Delete from this folder what writers have left there that died in the middle."""

    def open_input(self) -> pa.NativeFile:
        """Open it for reading at any place in it."""
        raise NotImplementedError

    def open_output(self) -> pa.NativeFile:
        """Open it for writing: it is there, as a whole, once that is closed."""
        raise NotImplementedError


def parts_of(location: str) -> tuple[str, str, str]:
    """Return the scheme of a URI, the host or bucket, and what is named there."""
    scheme, _, name = location.partition("://")
    place, _, key = name.partition("/")
    parts = [part for part in key.split("/") if part]  # as Hadoop reads it, which names its own so
    if not place or {".", ".."}.intersection(parts):
        raise CheckpointError(
            f"checkpoint {location}: name a bucket or a namenode, and a folder without . and .."
        )
    return scheme, place, "/".join(parts)


# Files in HDFS, in driver and tasks alike, by hdfs-native, a client without a JVM.
#
# A file is written aside, under a name that nobody else has, on to the disks of its datanodes; then
# it is renamed, which a namenode does for one writer alone where nothing may be written over. So
# what has a name is whole: a file that is created under its name is seen empty, for ever if its
# writer dies. A request is repeated while the cluster does not answer, or cannot yet: one that
# writes from the beginning, under another name, so a late answer to an earlier one changes nothing.


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
    """A cluster, and how to reach it."""

    uri: str  # the namenode, or a name service of several
    user: str  # whose files they are
    settings: tuple[tuple[str, str], ...] = ()  # hadoop's, as far as its client knows them

    @functools.lru_cache  # noqa: B019 - one a process
    def client(self) -> Any:
        """Return its client; one a process."""
        hdfs = load("hdfs_native", "a checkpoint in HDFS", error=CheckpointError)
        if self.user != _user():
            # A task's process may be another user's; the client asks the environment.
            os.environ[_USER] = self.user
        # All it is to know is in the settings: a folder of them on a task's machine may differ.
        return hdfs.Client(self.uri, dict(self.settings), config_dir=os.devnull)


class HdfsPath(RemotePath[Cluster]):
    """A file or folder in HDFS."""

    __slots__ = ()

    def iterdir(self) -> Iterator[HdfsPath]:
        """See `ObjectPath`."""
        try:
            found = self._ask(lambda client: [*client.list_status(self._path)])
        except FileNotFoundError:
            found = []
        return iter(sorted(HdfsPath(self.store, one.path.lstrip("/")) for one in found))

    def exists(self) -> bool:
        """See `ObjectPath`."""
        try:
            self._ask(lambda client: client.get_file_info(self._path))
        except FileNotFoundError:
            return False
        return True

    def get(self) -> bytes:
        """See `ObjectPath`."""
        return self.read_bytes()

    def put(self, content: bytes) -> None:
        """See `ObjectPath`."""
        self._write(io.BytesIO(content), overwrite=True)

    def put_new(self, content: bytes) -> bool:
        """See `ObjectPath`."""
        try:
            self._write(io.BytesIO(content), overwrite=False)
        except FileExistsError:
            return False
        return True

    def delete_all(self) -> None:
        """See `ObjectPath`."""
        self._ask(lambda client: client.delete(self._path, True))

    def drop_unfinished(self) -> None:
        """See `RemotePath`; a writer that is alive writes such a file anew."""
        for path in self.iterdir():
            if path.name.startswith("."):
                path.unlink()

    def open_input(self) -> pa.NativeFile:
        """See `RemotePath`."""
        return pa.PythonFile(_Input(self), mode="r")

    def open_output(self) -> pa.NativeFile:
        """See `RemotePath`."""
        return pa.PythonFile(_Output(self), mode="w")

    @property
    def _path(self) -> str:
        return f"/{self.key}"

    def _write(self, content: IO[bytes], *, overwrite: bool) -> None:
        """Write a file whole."""

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
                # An answer was lost, or what is ours was taken for left by a writer that died.
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
        """Ask the cluster, and again while it does not answer, or cannot yet."""
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
    """A file as pyarrow reads it: a range at a time, each asked for again where it fails."""

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
    """A file as pyarrow writes it: kept here until it is closed, and written then."""

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
    """Return where in HDFS a URI is; None of another one."""
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
    # Each namenode is asked once; how long all of them are asked again is ours to say.
    told["dfs.client.failover.max.attempts"] = str(max(0, len(namenodes) - 1))
    return HdfsPath(Cluster(f"{HDFS_SCHEME}://{place}", _user(), tuple(told.items())), key)


def settings_of_environment() -> Callable[[str], str | None]:
    """Return what gives Hadoop's settings without a session: those of `HADOOP_CONF_DIR`."""
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
    """Return who we are to Hadoop."""
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
    """Return what the cluster has said, in a line."""
    text = str(error)
    if said := _SAID.search(text):
        return ": ".join(said.groups())
    return text.partition("\n")[0]


# Files in an object store: named and opened like files in folders, which it does not have.
#
# By two libraries, each for what it can: pyarrow reads and writes data, in tasks, too; obstore does
# what pyarrow cannot: it creates an object only where there is none, and deletes one without asking
# for the folder above it. Neither is loaded for a checkpoint on a path.


S3_SCHEMES: Final = ("s3", "s3a", "s3n")
OBJECT_SCHEMES: Final = (*S3_SCHEMES, "gs", "abfs", "abfss")
_USE: Final = "a checkpoint in an object store"
_DEFAULT_REGION: Final = "us-east-1"
_TIMEOUT_S: Final = 60.0
_ATTEMPTS: Final = 10
"""With the pauses of pyarrow's between them, about as long as `_PATIENCE`."""
_PATIENCE: Final = timedelta(minutes=2)
"""A store that restarts, or asks for a lower rate, is asked again for so long."""
_LONGEST_PAUSE: Final = timedelta(seconds=2)
_REGION: Final = re.compile(
    r"\bs3(?:-fips)?\.(?:dualstack\.)?([a-z]+(?:-[a-z]+)+-\d)\.(?:vpce\.)?amazonaws\.com\b"
)
_STORE_SAID: Final = re.compile(r"<Code>(.*?)</Code>\s*(?:<Message>(.*?)</Message>)?", re.DOTALL)
_STATUS: Final = re.compile(r"\bstatus(?: code:)? (\d{3} [A-Z][A-Za-z ]*)")


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """A bucket, and how to reach it."""

    scheme: str
    name: str  # its name, with the account in it where the store has accounts
    # of S3: `access_key`, `secret_key`, `session_token`, `endpoint`, `region` and `virtual_host`;
    # what is missing says the environment, or the machine
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def uri(self) -> str:
        """The bucket as a URI."""
        return f"{self.scheme}://{self.name}"

    @functools.lru_cache  # noqa: B019 - one a process
    def files(self) -> Any:
        """Return pyarrow's file system; one a process."""
        from pyarrow import fs  # noqa: PLC0415 - S3's part of it takes a while to load

        if self.scheme not in S3_SCHEMES:
            return fs.FileSystem.from_uri(self.uri)[0]
        options = dict(self.options)
        scheme, _, host = options.get("endpoint", "").rpartition("://")
        given = {
            "access_key": options.get("access_key"),
            "secret_key": options.get("secret_key"),
            "session_token": options.get("session_token"),
            "endpoint_override": host,
            "scheme": scheme,
            "region": options.get("region"),
            "force_virtual_addressing": options.get("virtual_host") == "true",
        }
        return fs.S3FileSystem(
            **{name: said for name, said in given.items() if said},
            # A small file is one request, and not the three of a large one.
            allow_delayed_open=True,
            request_timeout=_TIMEOUT_S,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
        )

    @functools.lru_cache  # noqa: B019 - one a process
    def objects(self) -> Any:
        """Return obstore's store; one a process."""
        store = load("obstore.store", _USE, error=CheckpointError)

        if self.scheme not in S3_SCHEMES:
            return store.from_url(self.uri, **_patience())
        names = {
            "access_key": "access_key_id",
            "secret_key": "secret_access_key",
            "virtual_host": "virtual_hosted_style_request",
        }
        config: Any = {names.get(name, name): said for name, said in self.options}
        if "virtual_hosted_style_request" in config:
            # The client puts the bucket into its own endpoint's name alone.
            config["endpoint"] = config["endpoint"].replace("://", f"://{self.name}.")
        return store.S3Store(self.name, config=config, **_patience())


class ObjectPath(RemotePath[Bucket]):
    """A file or folder in a bucket."""

    __slots__ = ()

    @property
    def path(self) -> str:
        """Its name as pyarrow takes it, whose file system knows the account."""
        return f"{self.store.name.partition('@')[0]}/{self.key}"

    def iterdir(self) -> Iterator[Self]:
        """Return what is in this folder; nothing where there is no such folder."""
        with _calls(self) as obstore:
            found = obstore.list_with_delimiter(self.store.objects(), self.key or None)
        listed = [*found["common_prefixes"], *(one["path"] for one in found["objects"])]
        # Consoles and copying tools mark a folder by an empty object of its name, with a slash.
        keys = {key.rstrip("/") for key in listed} - {self.key}
        return iter(sorted(type(self)(self.store, key) for key in keys))

    def exists(self) -> bool:
        """Tell whether there is such an object, or one in a folder of this name."""
        with _calls(self) as obstore:
            try:
                obstore.head(self.store.objects(), self.key)
            except FileNotFoundError:
                return any(True for _ in self.iterdir())
            return True

    def get(self) -> bytes:
        """Return the content of the object."""
        with _calls(self) as obstore:
            return bytes(obstore.get(self.store.objects(), self.key).bytes())

    def put(self, content: bytes) -> None:
        """Write the object whole, and replace what is there."""
        with _calls(self) as obstore:
            obstore.put(self.store.objects(), self.key, content, use_multipart=False)

    def put_new(self, content: bytes) -> bool:
        """Write the object whole, if it is not there. Return whether this call surely wrote it."""
        with _calls(self) as obstore:
            try:
                store = self.store.objects()
                obstore.put(store, self.key, content, mode="create", use_multipart=False)
            except obstore.exceptions.AlreadyExistsError:
                return False
            return True

    def delete_all(self) -> None:
        """Delete it, and all in a folder of this name."""
        with _calls(self) as obstore:
            store = self.store.objects()
            for some in obstore.list(store, f"{self.key}/"):
                _delete(obstore, store, [one["path"] for one in some])
            _delete(obstore, store, self.key)

    def delete_files(self, names: Sequence[str]) -> None:
        """See `RemotePath`; in one request, where the store has one for that."""
        if names:
            with _calls(self) as obstore:
                _delete(obstore, self.store.objects(), [(self / name).key for name in names])

    def delete_folders(self, names: Sequence[str]) -> None:
        """See `RemotePath`; each is listed, and all that is in them goes as by `delete_files`."""
        with _calls(self) as obstore:
            store = self.store.objects()
            found = (obstore.list(store, f"{(self / name).key}/") for name in names)
            if keys := [one["path"] for listed in found for some in listed for one in some]:
                _delete(obstore, store, keys)

    def open_input(self) -> pa.NativeFile:
        """See `RemotePath`."""
        return self.store.files().open_input_file(self.path)

    def open_output(self) -> pa.NativeFile:
        """See `RemotePath`."""
        return self.store.files().open_output_stream(self.path)


def object_path(location: str, setting: Callable[[str], str | None]) -> ObjectPath | None:
    """Return where in an object store a URI is; None of another one."""
    if not location.startswith(tuple(f"{scheme}://" for scheme in OBJECT_SCHEMES)):
        return None
    scheme, bucket, key = parts_of(location)
    if scheme not in S3_SCHEMES:
        return ObjectPath(Bucket(scheme, bucket), key)

    def said(part: str) -> str | None:
        return setting(f"fs.s3a.bucket.{bucket}.{part}") or setting(f"fs.s3a.{part}")

    env = os.environ.get
    endpoint = said("endpoint") or env("AWS_ENDPOINT_URL_S3") or env("AWS_ENDPOINT_URL")
    if endpoint and "://" not in endpoint:
        endpoint = f"http{'' if said('connection.ssl.enabled') == 'false' else 's'}://{endpoint}"
    endpoint = endpoint and endpoint.rstrip("/")
    region = said("endpoint.region") or env("AWS_REGION") or env("AWS_DEFAULT_REGION")
    if not region and (named := _REGION.search(endpoint or "")):
        region = named[1]
    found = {
        "access_key": said("access.key"),
        "secret_key": said("secret.key"),
        "session_token": said("session.token"),
        "endpoint": endpoint,
        "region": region or (_DEFAULT_REGION if endpoint else _region_of(bucket)),
        # Buckets of an endpoint of one's own are named in the path, as a rule.
        "virtual_host": "true" if endpoint and said("path.style.access") == "false" else None,
    }
    options = tuple((name, told) for name, told in found.items() if told)
    # Hadoop, which writes Spark's part beside ours, knows S3 under one name.
    return ObjectPath(Bucket("s3a", bucket, options), key)


def _region_of(bucket: str) -> str:
    from pyarrow import fs  # noqa: PLC0415 - as below

    region: str = fs.resolve_s3_region(bucket)
    return region


@contextlib.contextmanager
def _calls(path: ObjectPath) -> Iterator[Any]:
    """Give obstore, whose errors become those of a file system, and name the object."""
    obstore = load("obstore", _USE, error=CheckpointError)
    refused = obstore.exceptions.PermissionDeniedError, obstore.exceptions.UnauthenticatedError
    try:
        yield obstore
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path}: {_store_in_words(error)}") from error
    except refused as error:
        raise PermissionError(
            f"{path}: {_store_in_words(error)}. The credentials are those of "
            "spark.hadoop.fs.s3a.*, or of the environment"
        ) from error
    except obstore.exceptions.BaseError as error:
        raise OSError(f"{path}: {_store_in_words(error)}") from error


def _store_in_words(error: Exception) -> str:
    """Return what the store has said, or else the first line of what the client says."""
    text = str(error)
    if said := _STORE_SAID.search(text):
        return ": ".join(filter(None, said.groups()))
    if status := _STATUS.search(text):
        return status[1].strip()
    return text.partition("\n")[0]


def _delete(obstore: Any, store: Any, keys: str | list[str]) -> None:
    """Delete objects, which need not be there: some stores are asked one by one, and tell."""
    with contextlib.suppress(FileNotFoundError):
        obstore.delete(store, keys)


def _patience() -> dict[str, Any]:
    """Return how long a store's client waits for answers: those of its own give up in seconds."""
    backoff = {"max_backoff": _LONGEST_PAUSE}
    return {
        "client_options": {"allow_http": True, "timeout": f"{_TIMEOUT_S:g}s"},
        "retry_config": {"max_retries": 1 << 20, "retry_timeout": _PATIENCE, "backoff": backoff},
    }
