"""The embedded broker: Apache Kafka in KRaft mode, one node on 127.0.0.1, in a folder of its own.

It is a process of its own and outlives the program that started it. Another program finds it by the
folder, which holds:

    server.properties   written at each start
    log4j2.properties   the same
    broker.json         ports, and the process that was started last
    broker.lock         held while a program starts or stops it
    data/               Kafka's own
    log/broker.log      what Kafka logs, rolled
    log/console.log     what the JVM prints, of the last start
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import msgspec
import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sequitur.base.child_processes import holding_signals
from sequitur.base.ports import HOST, answers, choose_free, is_free
from sequitur.errors import BrokerStartError, PipelineError, PortInUseError
from sequitur.pipelines.class_archive import ClassArchive
from sequitur.pipelines.jars import locked_jars
from sequitur.pipelines.java import find_java

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

_MAIN_CLASS: Final = "kafka.Kafka"
_PORT_ATTEMPTS: Final = 3
_POLL_S: Final = 0.05
_STOP_POLL_S: Final = 0.001
_FORMAT_TIMEOUT_S: Final = 120
_SIGNAL_TIMEOUT_S: Final = 30
_LINES_SHOWN: Final = 12
_PORT_TAKEN: Final = re.compile(r"Address already in use|Socket server failed to bind")
_CLUSTER_ID: Final = re.compile(r"^cluster\.id=(.+)$", re.MULTILINE)


class EmbeddedBroker:
    """One Kafka broker in a folder.

    As a context manager it is started on entry and stopped on exit.
    """

    def __init__(
        self,
        directory: Path,
        *,
        port: int = 0,
        usual_port: int = 0,
        options: Mapping[str, str] | None = None,
        heap_mib: int = 512,
        short_lived: bool = False,
        start_timeout_s: float = 90.0,
    ) -> None:
        self._files = Files(directory.absolute())
        self._port = port
        self._usual_port = usual_port
        self._options = dict(options or {})
        self._heap_mib = heap_mib
        self._short_lived = short_lived
        self._start_timeout_s = start_timeout_s
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def directory(self) -> Path:
        return self._files.directory

    @property
    def log_path(self) -> Path:
        return self._files.log

    @property
    def bootstrap_servers(self) -> str:
        """Where it answers, or answered when it last ran."""
        record = read_record(self._files.record)
        if record is None:
            raise BrokerStartError(f"no broker was ever started in {self.directory}")
        return f"{HOST}:{record.port}"

    def start(self) -> str:
        """Start the broker unless it runs; return its bootstrap servers once it answers.

        A broker that was paused is resumed.
        """
        java = find_java().program
        class_path = os.pathsep.join(map(str, locked_jars("broker")))
        with self._locked():
            running = self._process()
            if running is not None:
                self._refuse_other_port()
                running.resume()
                self._wait_until_it_answers(log_offset=0)
                return self.bootstrap_servers
            avoid: set[int] = set()
            for attempts_left in reversed(range(_PORT_ATTEMPTS)):
                record = self._choose_ports(avoid)
                try:
                    self._launch(java, class_path, record)
                except PortInUseError:
                    # Taken between the check and the start. A port that was asked for stays.
                    if self._port or not attempts_left:
                        raise
                    avoid |= {record.port, record.controller_port}
                else:
                    break
        return self.bootstrap_servers

    def stop(self, timeout_s: float = 30.0) -> None:
        """Stop the broker, by force after the given time; do nothing if none runs."""
        if not self.directory.exists():
            return
        with self._locked():
            process = self._process()
            if process is None:
                return
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
                process.resume()  # a stopped process takes no SIGTERM
                try:
                    process.wait(timeout_s)
                except psutil.TimeoutExpired:
                    process.kill()
                    process.wait(_SIGNAL_TIMEOUT_S)
            self._reap()
            self._keep_class_archive()

    def kill(self) -> None:
        """Kill the broker by SIGKILL, as a power cut would, and wait until it has ended."""
        process = self._process()
        if process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
                process.wait(_SIGNAL_TIMEOUT_S)
            self._reap()

    def pause(self) -> None:
        """Pause the broker (SIGSTOP): connections stay, and nothing answers once this returns."""
        process = self._signal(signal.SIGSTOP)
        # Each thread stops by itself, when it next leaves the kernel: one may yet send an answer.
        deadline = time.monotonic() + _SIGNAL_TIMEOUT_S
        while not is_at_rest(process.pid):
            if time.monotonic() > deadline:
                raise BrokerStartError(
                    f"the broker in {self.directory} still runs {_SIGNAL_TIMEOUT_S} s after it "
                    "was paused: a thread of it waits for the disk. Resume or stop it"
                )
            time.sleep(_STOP_POLL_S)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def status(self) -> BrokerStatus:
        record = read_record(self._files.record)
        process = self._process()
        return BrokerStatus(
            directory=self.directory,
            log_path=self.log_path,
            running=process is not None,
            answering=process is not None and self._answers(timeout_s=2.0),
            pid=process.pid if process else None,
            bootstrap_servers=f"{HOST}:{record.port}" if record else None,
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock that lets one program at a time start or stop the broker."""
        self._files.log.parent.mkdir(parents=True, exist_ok=True)
        with self._files.lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _process(self) -> psutil.Process | None:
        """Return the broker's process if it runs.

        After a reboot or a crash another program may have the process id. So the command line has
        to name this folder's properties. (The time of start proves less: it is counted from the
        wall clock, which may be set.) Our own child needs no proof. It has none at first, since its
        command line is empty while it is being executed.
        """
        record = read_record(self._files.record)
        if record is None or record.pid is None:
            return None
        child = self._child
        if child is not None and child.pid == record.pid:
            return psutil.Process(child.pid) if child.poll() is None else None
        try:
            process = psutil.Process(record.pid)
            arguments = process.cmdline()  # empty for a zombie
        except psutil.Error:
            return None
        ours = _MAIN_CLASS in arguments and str(self._files.properties) in arguments
        return process if ours else None

    def _keep_class_archive(self) -> None:
        with contextlib.suppress(PipelineError):
            class_path = os.pathsep.join(map(str, locked_jars("broker")))
            ClassArchive.of("broker", find_java().program, class_path, self.directory).publish()

    def _reap(self) -> None:
        if self._child is not None:
            self._child.poll()

    def _signal(self, number: signal.Signals) -> psutil.Process:
        process = self._process()
        if process is None:
            raise BrokerStartError(f"no broker runs in {self.directory}")
        process.send_signal(number)
        return process

    def _refuse_other_port(self) -> None:
        record = read_record(self._files.record)
        if record is not None and self._port not in {0, record.port}:
            raise BrokerStartError(
                f"the broker in {self.directory} already runs on port {record.port}, not on "
                f"{self._port}: stop it first, or choose another folder"
            )

    def _choose_ports(self, avoid: set[int]) -> BrokerRecord:
        before = read_record(self._files.record)
        if self._port:
            if not is_free(self._port):
                raise PortInUseError(
                    f"port {self._port} on {HOST} is in use by another program: "
                    "choose another, or 0 for any that is free"
                )
            port = self._port
        else:
            wanted = [self._usual_port, before.port if before else 0]
            free = (one for one in wanted if one and one not in avoid and is_free(one))
            port = next(free, 0) or choose_free(avoid)
        return BrokerRecord(port=port, controller_port=choose_free({*avoid, port}))

    def _launch(self, java: Path, class_path: str, record: BrokerRecord) -> None:
        """Start the JVM and wait until the broker answers; leave nothing behind if it doesn't."""
        write_set_up(self._files, record, self._options)
        self._format_once(java, class_path)
        command = broker_command(
            java,
            class_path,
            heap_mib=self._heap_mib,
            short_lived=self._short_lived,
            log4j=self._files.log4j,
            archive=ClassArchive.of("broker", java, class_path, self.directory),
        )
        offset = self._files.log.stat().st_size if self._files.log.exists() else 0
        child = None
        try:
            with self._files.console.open("wb") as console, holding_signals():
                child = self._child = subprocess.Popen(
                    [*command, _MAIN_CLASS, self._files.properties],
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C on the program is not meant for the broker
                    cwd=self.directory,
                )
            record = msgspec.structs.replace(record, pid=child.pid)
            write_whole(self._files.record, msgspec.json.encode(record))
            self._wait_until_it_answers(log_offset=offset)
        except BaseException:
            if child is not None:
                child.kill()
                child.wait()
            raise

    def _format_once(self, java: Path, class_path: str) -> None:
        """Let Kafka format the data folder: in another folder, then moved, so never in part."""
        data = self._files.data
        if data.exists():
            return
        aside = data.with_name("data.formatting")
        shutil.rmtree(aside, ignore_errors=True)
        text = self._files.properties.read_text("ascii")
        properties = self._files.properties.with_name("format.properties")
        # Of a name given twice, the later counts.
        properties.write_text(f"{text}\nlog.dirs={aside}\n", "utf-8")
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")
        command: list[str | Path] = [java, "-Xmx128m", "-XX:TieredStopAtLevel=1"]
        command += ClassArchive.of("broker", java, class_path, self.directory).use()
        command += ["-cp", class_path, "kafka.tools.StorageTool", "format"]
        command += [f"--cluster-id={cluster_id}", "--config", properties]
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=_FORMAT_TIMEOUT_S, check=False
        )
        properties.unlink()
        if run.returncode != 0:
            shutil.rmtree(aside, ignore_errors=True)
            lines = telling_lines((run.stdout + run.stderr).splitlines(), _LINES_SHOWN)
            raise BrokerStartError(
                f"Kafka could not format {data}. Its last lines:\n" + "\n".join(lines)
            )
        aside.replace(data)

    def _wait_until_it_answers(self, *, log_offset: int) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        while time.monotonic() < deadline:
            process = self._process()
            if process is None:
                raise self._start_error("ended while it started", log_offset)
            record = read_record(self._files.record)
            if record and answers(record.port) and self._answers(timeout_s=2.0):
                return
            # Returns at once when the process ends.
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(_POLL_S)
        raise self._start_error(f"did not answer within {self._start_timeout_s:g} s", log_offset)

    def _start_error(self, what: str, log_offset: int) -> BrokerStartError:
        self._reap()
        lines = lines_since(self._files.console, 0)
        lines += lines_since(self._files.log, log_offset)
        kind = BrokerStartError
        if any(_PORT_TAKEN.search(line) for line in lines):
            kind = PortInUseError
        shown = "\n".join(telling_lines(lines, _LINES_SHOWN)) or "(it logged nothing)"
        return kind(
            f"the broker in {self.directory} {what}. The last lines of {self.log_path}:\n{shown}"
        )

    def _answers(self, timeout_s: float) -> bool:
        """Ask for the cluster's metadata: is it this cluster, with its broker?"""
        client = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        try:
            metadata = client.list_topics(timeout=timeout_s)
        except KafkaException:
            return False
        return bool(metadata.brokers) and metadata.cluster_id == self._cluster_id()

    def _cluster_id(self) -> str | None:
        try:
            text = (self._files.data / "meta.properties").read_text("utf-8")
        except OSError:
            return None
        match = _CLUSTER_ID.search(text)
        return match[1].strip() if match else None


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """The state of an embedded broker at one moment."""

    directory: Path
    log_path: Path
    running: bool
    answering: bool
    pid: int | None
    bootstrap_servers: str | None


def is_at_rest(process: int) -> bool:
    """Tell whether all threads of a process are stopped, or gone."""
    for thread in Path(f"/proc/{process}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            state = thread.read_text("utf-8", "replace").rpartition(")")[2].split()[0]
            if state not in "tTZX":
                return False
    return True


@dataclass(frozen=True, slots=True)
class Files:
    """The paths in a broker's folder."""

    directory: Path

    @property
    def properties(self) -> Path:
        return self.directory / "server.properties"

    @property
    def log4j(self) -> Path:
        return self.directory / "log4j2.properties"

    @property
    def record(self) -> Path:
        return self.directory / "broker.json"

    @property
    def lock(self) -> Path:
        return self.directory / "broker.lock"

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def log(self) -> Path:
        return self.directory / "log" / "broker.log"

    @property
    def console(self) -> Path:
        return self.directory / "log" / "console.log"


class BrokerRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is remembered of a broker between two programs that handle it."""

    port: int
    controller_port: int
    pid: int | None = None


def read_record(path: Path) -> BrokerRecord | None:
    """Return the record, or None when there is none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=BrokerRecord)
    except (OSError, msgspec.DecodeError):
        # A damaged record prevents no start: its process then counts as dead.
        return None


# One node: nothing can be replicated. Few partitions of the internal topics: each costs files and
# start-up time. A small cleaner buffer: its default is a quarter of the broker's heap.
_PROPERTIES: Final[Mapping[str, str]] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    # A broker that was killed cannot register again before its old session ends (default: 9 s).
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "log.cleaner.dedupe.buffer.size": str(16 << 20),
}


_LOG4J: Final = """\
status = error
shutdownHook = disable
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {file}
appender.file.filePattern = {file}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{ISO8601}} %p %c{{1}} %m%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 16MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
logger.config.name = org.apache.kafka.common.config
logger.config.level = warn
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
"""


def write_set_up(files: Files, record: BrokerRecord, options: Mapping[str, str]) -> None:
    """Write the broker's properties and log set-up."""
    properties = {
        **single_node_properties(record.port, record.controller_port),
        "log.dirs": str(files.data),
        **options,
    }
    lines = [f"{_escaped(name)}={_escaped(value)}\n" for name, value in properties.items()]
    write_whole(files.properties, "".join(lines).encode())
    write_whole(files.log4j, _LOG4J.format(file=_escaped(str(files.log))).encode())


def single_node_properties(port: int, controller_port: int) -> dict[str, str]:
    """Return the server properties of one broker that is all of its cluster, without folders."""
    return {
        **_PROPERTIES,
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
    }


def _escaped(text: str) -> str:
    """Write text as Java's properties files want it: backslashes and line ends escaped, ASCII."""
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    units = text.encode("utf-16-be")
    codes = (int.from_bytes(units[i : i + 2]) for i in range(0, len(units), 2))
    return "".join(chr(code) if code < 128 else f"\\u{code:04x}" for code in codes)  # noqa: PLR2004


def write_whole(path: Path, content: bytes) -> None:
    """Write a file. No reader sees half of it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    Path(name).replace(path)


# Ten times the usual thresholds for the optimising compiler. At the usual ones half of the CPU time
# of a start goes into compiling code that runs only then (measured: 6.1 s -> 3.8 s); under load
# the broker's hot code passes these as well, a moment later.
_COMPILERS: Final = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)


# The optimising compiler never runs: another third less for a start, and for a little work.
_QUICK_COMPILER: Final = ("-XX:TieredStopAtLevel=1",)


def broker_command(
    java: Path,
    class_path: str,
    *,
    heap_mib: int,
    short_lived: bool,
    log4j: Path,
    archive: ClassArchive,
) -> Sequence[str | Path]:
    """Return the command line up to the main class and its argument."""
    return [
        java,
        f"-Xms{heap_mib}m",
        f"-Xmx{heap_mib}m",
        "-XX:+UseParallelGC",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:-UsePerfData",
        *(_QUICK_COMPILER if short_lived else _COMPILERS),
        archive.option(),
        "-Djava.awt.headless=true",
        f"-Dlog4j2.configurationFile={log4j}",
        "-cp",
        class_path,
    ]


_MOST_READ: Final = 1 << 20


_ERROR: Final = re.compile(
    r" (ERROR|FATAL) |^(Caused by: |Exception in .*)?[\w.$]+(Exception|Error)\b"
)


def lines_since(path: Path, offset: int) -> list[str]:
    """Return the lines of a log that were written from an offset on, at most the last MiB."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            # Rolled since: all of it is new.
            file.seek(max(offset if offset <= size else 0, size - _MOST_READ))
            return file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []


def telling_lines(lines: list[str], count: int) -> list[str]:
    """Return the last lines, and before them the first lines with errors.

    Kafka logs many lines about its shutdown, long after the one with the reason.
    """
    last = lines[-count:]
    errors = [line for line in lines[:-count] if _ERROR.search(line)][:count]
    return [*errors, "...", *last] if errors else last
