"""An HDFS cluster on this machine: Hadoop's own, in one JVM, behind a port with faults on demand.

A process of its own holds the JVM, and passes on what clients and the namenode say to each other.
It is told what to do line by line, and ends with whoever tells it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from sequitur.pipelines.class_archive import ClassArchive
from sequitur.pipelines.jars import cache_directory, locked_jars
from sequitur.pipelines.java import find_java
from sequitur.pipelines.spark_settings import spark_home
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

_UP_TIMEOUT_S: Final = 5 * PATIENCE_S
_SPARKS_JARS: Final = ("hadoop-client-*", "jcl-over-slf4j-*", "log4j-[acs]*", "slf4j-api-*")
_KINDS: Final = ("refused", "lost")
_PIECE_BYTES: Final = 1 << 16


class HdfsCluster:
    """A namenode and a datanode; to be used by `with`.

    Attributes:
        port: Where clients reach the namenode.
    """

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.hdfs_cluster"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.port: int = self._read()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    @property
    def uri(self) -> str:
        return f"hdfs://127.0.0.1:{self.port}"

    def fault(self, *, refused: int = 0, lost: int = 0, slow_s: float = 0, of: str = "") -> None:
        """Have the next requests to the namenode fail.

        Args:
            refused: So many are cut off before they are passed on.
            lost: After those, so many are done, and cut off without an answer.
            slow_s: All wait for so long.
            of: Only those that have this in them: a path, or the name of a call.
        """
        self._tell({"refused": refused, "lost": lost, "slow_s": slow_s, "of": of})

    def faults_left(self) -> int:
        """How many of them are still to come."""
        return int(self._tell({}))

    def kill(self) -> None:
        """Kill namenode and datanode; what they have on the disk stays."""
        self._tell({"kill": True})

    def start(self) -> None:
        """Start them again, behind the same port."""
        self._tell({"start": True})

    def _tell(self, what: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(what)}\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


class _Jvm:
    """Namenode and datanode.

    Args:
        folder: Where they keep what they have.
        port: The namenode's.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start them, and wait until they are up; a folder that is new is formatted."""
        details = self._folder / "details.json"
        details.unlink(missing_ok=True)
        jars = [_stored(jar) if "minicluster" in jar.name else jar for jar in locked_jars("hdfs")]
        jars += [
            jar for name in _SPARKS_JARS for jar in (spark_home() / "jars").glob(f"{name}.jar")
        ]
        class_path = ":".join(map(str, sorted(jars)))
        java = find_java().program
        self._archive = ClassArchive.of("hdfs", java, class_path, self._folder)
        command: list[str | Path] = [java, self._archive.option(), "-Xshare:auto", "-Xlog:cds=off"]
        command += ["-Xlog:cds+dynamic=off", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        command += ["-Xmx512m", "-Dlog4j2.level=OFF", "-cp", class_path]
        command += ["org.apache.hadoop.test.MiniDFSClusterManager", "-nnport", str(self._port)]
        command += ["-writeDetails", details]
        command += [] if (self._folder / "target").exists() else ["-format"]
        with (self._folder / "said").open("wb") as said:
            self._process = subprocess.Popen(command, cwd=self._folder, stdout=said, stderr=said)
        deadline_s = time.monotonic() + _UP_TIMEOUT_S
        while not details.exists():
            is_well = self._process.poll() is None and time.monotonic() < deadline_s
            assert is_well, (self._folder / "said").read_text()
            time.sleep(0.05)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def end(self) -> None:
        """End them, in order where that leaves an archive of their classes for the next."""
        if self._process is not None and not self._archive.shared.exists():
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_UP_TIMEOUT_S)
            self._archive.publish()
        self.kill()


def _stored(jar: Path) -> Path:
    """Return a copy that is not compressed: servlets look through all of it, at each start."""
    copy = cache_directory() / "stored" / jar.name
    if not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=copy.parent) as aside:
            with zipfile.ZipFile(jar) as given, zipfile.ZipFile(Path(aside, "jar"), "w") as stored:
                for name in given.namelist():
                    stored.writestr(name, given.read(name))
            Path(aside, "jar").replace(copy)
    return copy


class _Port:
    """Where clients reach the namenode.

    Attributes:
        faults: What is to fail, as `HdfsCluster.fault` says it.
    """

    def __init__(self, port: int) -> None:
        self.faults: dict[str, Any] = {}
        self._port = port

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what a client says, and what it is answered."""
        with contextlib.suppress(OSError, asyncio.CancelledError):
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._port)
            loses = asyncio.Event()
            passing = [
                asyncio.ensure_future(self._requests(reader, up_writer, loses.set)),
                asyncio.ensure_future(_answers(up_reader, writer, loses.is_set)),
            ]
            await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
            for one in passing:
                one.cancel()
            await asyncio.gather(*passing, return_exceptions=True)
            up_writer.close()
        writer.close()

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lose: Callable[[], None]
    ) -> None:
        while said := await reader.read(_PIECE_BYTES):
            if self.faults and self.faults["of"].encode() in said:
                await asyncio.sleep(self.faults["slow_s"])
                kind = next((kind for kind in _KINDS if self.faults[kind]), None)
                if kind is not None:
                    self.faults[kind] -= 1
                if kind == "refused":
                    return
                if kind == "lost":
                    lose()
            writer.write(said)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


async def _answers(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, loses: Callable[[], bool]
) -> None:
    while said := await reader.read(_PIECE_BYTES):
        if loses():
            return
        writer.write(said)
        await writer.drain()


async def _serve(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        namenode = free.getsockname()[1]
    jvm, port = _Jvm(folder, namenode), _Port(namenode)
    server = await asyncio.start_server(port.serve, "127.0.0.1", 0)
    try:
        await asyncio.to_thread(jvm.start)
        answer: Any = server.sockets[0].getsockname()[1]
        while True:
            sys.stdout.write(f"{json.dumps(answer)}\n")
            sys.stdout.flush()
            line = await asyncio.to_thread(sys.stdin.readline)
            if not line:
                return
            told = json.loads(line)
            if "kill" in told:
                jvm.kill()
            elif "start" in told:
                await asyncio.to_thread(jvm.start)
            elif told:
                port.faults = told
            answer = sum(port.faults.get(kind, 0) for kind in _KINDS)
    finally:
        await asyncio.to_thread(jvm.end)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="sequitur-hdfs-") as name:
        asyncio.run(_serve(Path(name)))
