"""Files in an object store: named and opened like files in folders, which it does not have.

By two libraries, each for what it can: pyarrow reads and writes data, in tasks, too; obstore does
what pyarrow cannot: it creates an object only where there is none, and deletes one without asking
for the folder above it. Neither is loaded for a checkpoint on a path.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from sequitur.base.extras import load
from sequitur.errors import CheckpointError
from sequitur.pipelines.store.remote_path import RemotePath, parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa


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
    scheme: str
    name: str  # its name, with the account in it where the store has accounts
    # of S3: `access_key`, `secret_key`, `session_token`, `endpoint`, `region` and `virtual_host`;
    # the environment or the machine gives what is missing
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def uri(self) -> str:
        return f"{self.scheme}://{self.name}"

    @functools.lru_cache  # noqa: B019 - one a process
    def files(self) -> Any:
        """Return pyarrow's file system; there is one for each process."""
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
        """Return obstore's store; there is one for each process."""
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
            # The client puts the bucket only into the name of its own endpoint.
            config["endpoint"] = config["endpoint"].replace("://", f"://{self.name}.")
        return store.S3Store(self.name, config=config, **_patience())


class ObjectPath(RemotePath[Bucket]):
    __slots__ = ()

    @property
    def path(self) -> str:
        """The name for pyarrow, whose file system knows the account."""
        return f"{self.store.name.partition('@')[0]}/{self.key}"

    def iterdir(self) -> Iterator[Self]:
        """Yield what is in this folder; nothing if there is no such folder."""
        with _calls(self) as obstore:
            found = obstore.list_with_delimiter(self.store.objects(), self.key or None)
        listed = [*found["common_prefixes"], *(one["path"] for one in found["objects"])]
        # Consoles and copying tools mark a folder by an empty object with its name and a slash.
        keys = {key.rstrip("/") for key in listed} - {self.key}
        return iter(sorted(type(self)(self.store, key) for key in keys))

    def exists(self) -> bool:
        """Tell whether there is such an object, or an object in a folder of this name."""
        with _calls(self) as obstore:
            try:
                obstore.head(self.store.objects(), self.key)
            except FileNotFoundError:
                return any(True for _ in self.iterdir())
            return True

    def get(self) -> bytes:
        with _calls(self) as obstore:
            return bytes(obstore.get(self.store.objects(), self.key).bytes())

    def put(self, content: bytes) -> None:
        """Write the object whole, over what is there."""
        with _calls(self) as obstore:
            obstore.put(self.store.objects(), self.key, content, use_multipart=False)

    def put_new(self, content: bytes) -> bool:
        """Write the object whole if it is not there; return whether this call surely wrote it."""
        with _calls(self) as obstore:
            try:
                store = self.store.objects()
                obstore.put(store, self.key, content, mode="create", use_multipart=False)
            except obstore.exceptions.AlreadyExistsError:
                return False
            return True

    def delete_all(self) -> None:
        """Delete the object, and all in a folder of this name."""
        with _calls(self) as obstore:
            store = self.store.objects()
            for some in obstore.list(store, f"{self.key}/"):
                _delete(obstore, store, [one["path"] for one in some])
            _delete(obstore, store, self.key)

    def delete_files(self, names: Sequence[str]) -> None:
        """Delete files, in one request if the store can."""
        if names:
            with _calls(self) as obstore:
                _delete(obstore, self.store.objects(), [(self / name).key for name in names])

    def delete_folders(self, names: Sequence[str]) -> None:
        """List each folder, and delete what is in it as `delete_files` does."""
        with _calls(self) as obstore:
            store = self.store.objects()
            found = (obstore.list(store, f"{(self / name).key}/") for name in names)
            if keys := [one["path"] for listed in found for some in listed for one in some]:
                _delete(obstore, store, keys)

    def open_input(self) -> pa.NativeFile:
        return self.store.files().open_input_file(self.path)

    def open_output(self) -> pa.NativeFile:
        return self.store.files().open_output_stream(self.path)


def object_path(location: str, setting: Callable[[str], str | None]) -> ObjectPath | None:
    """Return the place of a URI in an object store; None if it is elsewhere."""
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
    """Yield obstore; turn its errors into those of a file system, with the object's name."""
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
    """Return the store's message, or else the first line of the client's."""
    text = str(error)
    if said := _STORE_SAID.search(text):
        return ": ".join(filter(None, said.groups()))
    if status := _STATUS.search(text):
        return status[1].strip()
    return text.partition("\n")[0]


def _delete(obstore: Any, store: Any, keys: str | list[str]) -> None:
    """Delete objects that may be missing: some stores raise for a missing one."""
    with contextlib.suppress(FileNotFoundError):
        obstore.delete(store, keys)


def _patience() -> dict[str, Any]:
    """Return how long a store's client waits for answers: by default it gives up in seconds."""
    backoff = {"max_backoff": _LONGEST_PAUSE}
    return {
        "client_options": {"allow_http": True, "timeout": f"{_TIMEOUT_S:g}s"},
        "retry_config": {"max_retries": 1 << 20, "retry_timeout": _PATIENCE, "backoff": backoff},
    }
