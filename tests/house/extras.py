"""Each extra does what it is for: `make test-extras`.

The wheel goes into a virtual environment without anything else, by the constraints of this project;
what an extra brings is added to a copy of that, and then used. Who lacks it is told its name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sequitur.embedded import EmbeddedBroker
from tests.support.hdfs_cluster import HdfsCluster
from tests.support.installed import build_wheel
from tests.support.s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server
from tests.support.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

LARGEST_BASE_MB: Final = 150
_TIMEOUT_S: Final = 240
_EVENTS: Final = 6_000
"""A third of it is a bulk, which is taken a column at a time where there is Arrow."""

_NOTHING_HEAVY: Final = """
import importlib.util
for name in ("pyspark", "pandas", "matplotlib", "pyarrow", "sqlalchemy", "obstore", "hdfs_native"):
    assert importlib.util.find_spec(name) is None, name
"""
_TESTER: Final = """
import sys
from pathlib import Path
from sequitur import TopologyBuilder, TopologyTester, bolt

@bolt(fields=("word",))
def split(event):
    yield from event.value.split()

builder = TopologyBuilder("words")
builder.set_spout("lines")
builder.set_bolt("split", split).local_grouping("lines")
builder.set_output("words", topic="words", key="word", value="word").local_grouping("split")
tester = TopologyTester(builder.build())
tester.run([("a", b"the cow jumped")])
assert len(tester.records("words")) == 3, tester.records("words")
"""
_PICTURE: Final = f"""{_TESTER}
import shutil
shutil.which = lambda name: None
tester.trees[0].to_png(Path("tree.png"))
assert Path("tree.png").read_bytes().startswith(b"\\x89PNG")
"""
_SEND: Final = f"""
import asyncio, json, os, sys
from sequitur import IdempotentProducer, Record

async def main():
    async with IdempotentProducer(os.environ["KAFKA_BOOTSTRAP_SERVERS"]) as producer:
        for part in range(3):
            records = [
                Record(json.dumps({{"t": 1_700_000_000_000 + n}}).encode(), key=b"k")
                for n in range(part * {_EVENTS // 3}, (part + 1) * {_EVENTS // 3})
            ]
            ticket = await producer.send_many("readings", records)
            assert (await ticket).persisted == len(records)
            await asyncio.sleep(float(sys.argv[1]))

asyncio.run(main())
loaded = "pyarrow" in sys.modules
assert loaded == (sys.argv[2] == "arrow"), loaded
"""
_RECEIVE: Final = f"""
import os
from sequitur import Subscription

found = []
address = os.environ["KAFKA_BOOTSTRAP_SERVERS"]
with Subscription(address, "extras", "readings", position="earliest") as subscription:
    while len(found) < {_EVENTS}:
        messages = subscription.receive_many(1_000, timeout_s=30)
        assert messages, len(found)
        subscription.acknowledge_many(messages)
        found += messages
"""
_ARROW_TABLE: Final = """
import asyncio, os
import pyarrow as pa
from sequitur import IdempotentProducer

async def main():
    async with IdempotentProducer(os.environ["KAFKA_BOOTSTRAP_SERVERS"]) as producer:
        result = await (await producer.send_many("columns", pa.table({"value": [b"a", b"b"]})))
        assert result.persisted == 2, result

asyncio.run(main())
"""
_REORDER: Final = """
from sequitur.testing import ReorderTester

settings = {
    "input_topics": ["readings"], "output_topic": "ordered",
    "event_time": "json:at", "delay": "10 s",
}
rows = [b'{"at": 1700000002000}', b'{"at": 1700000001000}']
with ReorderTester(settings) as tester:
    tester.run([{"value": row} for row in rows])
    tester.drain()
    assert [one.value for one in tester.released] == rows[::-1]
"""
_STATE: Final = """
from sequitur import SQLStore
SQLStore("sqlite:///counts.db"), SQLStore("postgresql+psycopg://user@host/counts")
"""
_CHECKPOINT: Final = """
import sys
from sequitur.pipelines.store.storage import storage_at
folder = storage_at(sys.argv[1])
folder.make_folder("steps")
assert folder.create("steps/a.json", "{}") and not folder.create("steps/a.json", "[]")
assert (folder.read("steps/a.json"), folder.names("steps")) == ("{}", ["a.json"])
"""
_JOB: Final = (
    *("reorder", "--input-topics", "readings", "--output-topic", "readings.ordered"),
    *("--event-time", "json:t", "--delay", "1 s", "--available-now", "--drain"),
    *("--progress", "json"),
)


_LOCAL: Final = (*_JOB, "--runner", "local")
_PROCESS: Final = ("process", str(ROOT / "examples" / "wordcount.py"))
_NO_SPARK: Final = """
import importlib.util
for name in ("pyspark", "py4j", "pandas"):
    assert importlib.util.find_spec(name) is None, name
"""


class Environment:
    """A virtual environment with the wheel, and what extras of it bring."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self.folder = folder
        self._environ = environ

    def install(self, *words: str) -> None:
        """By this project's pip: the environment needs none of its own."""
        pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
        constraints = ["-c", str(ROOT / "constraints.txt")]
        python = ["--python", str(self.folder / "bin" / "python")]
        subprocess.run([*pip, *python, "install", *constraints, *words], check=True)

    def copy(self, name: str) -> Environment:
        """Return another one that holds the same; files are linked."""
        folder = self.folder.with_name(name)
        shutil.copytree(self.folder, folder, symlinks=True, copy_function=os.link)
        return Environment(folder, self._environ)

    def size_mb(self) -> float:
        files = (path.lstat() for path in self.folder.rglob("*") if not path.is_dir())
        return sum(file.st_size for file in files) / 1e6

    def run(self, *words: str, fails_with: str = "", **environ: str) -> None:
        """Run Python with these arguments; it has to succeed, or to fail with these words."""
        run = subprocess.run(
            [self.folder / "bin" / "python", *words],
            cwd=self.folder, env={**self._environ, **environ}, timeout=_TIMEOUT_S, check=False,
            capture_output=True, text=True,
        )  # fmt: skip
        assert (run.returncode != 0) == bool(fails_with), f"{words}\n{run.stdout}{run.stderr}"
        assert fails_with in run.stderr, f"{words}\n{run.stderr}"

    def command(self, *words: str, fails_with: str = "", **environ: str) -> None:
        self.run("-m", "sequitur", *words, fails_with=fails_with, **environ)


def _use_base(base: Environment) -> None:
    base.run("-c", _NOTHING_HEAVY)
    base.run("-c", _TESTER)
    base.run("-c", _SEND, "0", "rows")
    feed = ("--topic", "fed", "--name", "cpu", "--source", "cpu", "--duration", "1 s")
    base.command("produce", *feed)
    base.command("measure", "fed", "--event-time", "kafka-timestamp")
    base.run("-c", _RECEIVE)


def _name_what_is_missing(base: Environment) -> None:
    def told(extra: str) -> str:
        return f"pip install 'sequitur-kafka[{extra}]'"

    base.command(*_JOB, "--checkpoint", "checkpoint", fails_with=told("spark"))
    base.command(*_JOB, "--checkpoint", "checkpoint", fails_with=told("local"))
    base.command(*_LOCAL, "--checkpoint", "checkpoint", fails_with=told("local"))
    base.command("reorder", "inspect", "checkpoint", fails_with=told("arrow"))
    base.command("demo", fails_with=told("spark"))
    base.run("-c", "import sequitur.spark", fails_with=told("spark"))
    base.run("-c", "import sequitur.local", fails_with=told("local"))
    base.run("-c", _REORDER, fails_with=told("arrow"))
    base.run("-c", _PICTURE, fails_with=told("plot"))
    base.run("-c", _STATE, fails_with=told("state"))


def use_local(local: Environment, wheel: Path, folder: Path) -> None:
    """Run a job and a topology where there is neither PySpark nor Java."""
    local.install(f"{wheel}[local]")
    local.run("-c", _NO_SPARK)
    for name, job in (("rows", _LOCAL), ("words", (*_PROCESS, *_LOCAL[1:]))):
        output = ("--output-topic", f"local.{name}", "--checkpoint", str(folder / name))
        local.command(*job, *output, PATH="", JAVA_HOME="")
        local.command("reorder", "inspect", str(folder / name), PATH="", JAVA_HOME="")
    local.run("-c", "import sequitur.local")


def _use_extras(base: Environment, wheel: Path, folder: Path) -> None:
    arrow = base.copy("arrow")
    arrow.install(f"{wheel}[arrow]")
    arrow.run("-c", _SEND, "2", "arrow")
    arrow.run("-c", _ARROW_TABLE)
    arrow.run("-c", _REORDER)
    _tell("arrow")

    use_local(base.copy("local"), wheel, folder)
    _tell("local")

    spark = base.copy("spark")
    spark.install(f"{wheel}[spark]")
    spark.command(*_JOB, "--checkpoint", str(folder / "checkpoint"))
    spark.command("reorder", "inspect", str(folder / "checkpoint"))
    spark.command("verify", "readings.ordered", "--event-time", "json:t")
    spark.run("-c", "import sequitur.spark")
    _tell("spark")

    far = f"s3://{BUCKET}/checkpoint"
    region = {"AWS_REGION": "us-east-1"}  # else the bucket's is asked for
    spark.run("-c", _CHECKPOINT, far, fails_with="pip install 'sequitur-kafka[s3]'", **region)
    spark.run("-c", _CHECKPOINT, "hdfs://h:1/c", fails_with="pip install 'sequitur-kafka[hdfs]'")
    spark.install(f"{wheel}[s3,hdfs]")
    with S3Server() as server:
        access = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
        spark.run("-c", _CHECKPOINT, far, AWS_ENDPOINT_URL=server.endpoint, **access)
    _tell("s3")
    with HdfsCluster() as cluster:
        spark.run("-c", _CHECKPOINT, f"{cluster.uri}/checkpoint")
    _tell("hdfs")

    small = base.copy("plot")
    small.install(f"{wheel}[plot]")
    small.run("-c", _PICTURE)
    _tell("plot")
    small.install(f"{wheel}[state]")
    small.run("-c", _STATE)
    _tell("state")


_begun: Final = time.monotonic()


def _tell(what: str) -> None:
    print(f"extras: {what} does what it is for, {time.monotonic() - _begun:.0f} s", file=sys.stderr)


def _create_topics(address: str) -> None:
    topics = [NewTopic(name, num_partitions=2) for name in ("readings", "columns")]
    client = AdminClient({"bootstrap.servers": address})
    for creation in client.create_topics(topics).values():
        creation.result(_TIMEOUT_S)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="sequitur-extras-") as made:
        folder = Path(made)
        wheel = build_wheel(folder)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "KAFKA"))}
        with EmbeddedBroker(folder / "broker") as broker:
            state = str(folder / "state")
            own = {"KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap_servers, "XDG_STATE_HOME": state}
            _create_topics(broker.bootstrap_servers)
            venv.create(folder / "base", with_pip=False, symlinks=True)
            base = Environment(folder / "base", clean | own)
            base.install(str(wheel))
            size_mb = base.size_mb()
            assert size_mb <= LARGEST_BASE_MB, f"the base has {size_mb:.0f} MB"
            _use_base(base)
            _name_what_is_missing(base)
            _tell(f"the base, {size_mb:.0f} MB,")
            _use_extras(base, wheel, folder)


if __name__ == "__main__":
    main()
