"""What the embedded broker's folder holds: properties, log set-up, and the record of its process.

DIRECTORY/server.properties   written at each start
DIRECTORY/log4j2.properties   the same
DIRECTORY/broker.json         ports, and the process that was started last
DIRECTORY/broker.lock         held while a program starts or stops it
DIRECTORY/data/               Kafka's own
DIRECTORY/log/broker.log      what Kafka logs, rolled
DIRECTORY/log/console.log     what the JVM prints, of the last start
"""

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from sequitur._ports import HOST

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

_MOST_READ: Final = 1 << 20
_ERROR: Final = re.compile(
    r" (ERROR|FATAL) |^(Caused by: |Exception in .*)?[\w.$]+(Exception|Error)\b"
)


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
        # A damaged record prevents no start: the process is then taken for dead or another's.
        return None


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that no reader sees half of it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    Path(name).replace(path)


def single_node_properties(port: int, controller_port: int) -> dict[str, str]:
    """Return the server properties of one broker that is all of its cluster, without folders."""
    return {
        **_PROPERTIES,
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
    }


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


def _escaped(text: str) -> str:
    """Write text as Java's properties files want it: backslashes and line ends escaped, ASCII."""
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    units = text.encode("utf-16-be")
    codes = (int.from_bytes(units[i : i + 2]) for i in range(0, len(units), 2))
    return "".join(chr(code) if code < 128 else f"\\u{code:04x}" for code in codes)  # noqa: PLR2004


def lines_since(path: Path, offset: int) -> list[str]:
    """Return the lines of a log that were written from an offset on; of very many, the last."""
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
