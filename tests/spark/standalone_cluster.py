"""A Spark cluster of its own on this machine: a master, and workers on hosts that differ by name.

Spark runs a speculative copy of a task on another host only, so one host will not do.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyspark

from sequitur.pipelines.launch import class_archive_options, spark_submit_environment
from tests.spark.conftest import wait_until
from tests.spark.submitted_job import SHORT_LIVED

if TYPE_CHECKING:
    from collections.abc import Iterator

_SPARK_CLASS: Final = Path(pyspark.__file__).parent / "bin" / "spark-class"
_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
_HOSTS: Final = ("127.0.0.1", "127.0.0.2")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def java_options() -> str:
    """Return what each of its JVMs starts quickly by."""
    return " ".join([SHORT_LIVED, *class_archive_options()])


@contextlib.contextmanager
def standalone_cluster(folder: Path, *, memory: str = "600m") -> Iterator[str]:
    """The URL of a master with two workers of one core each; they end with the block."""
    url = f"spark://127.0.0.1:{(port := _free_port())}"
    small = {"SPARK_DAEMON_MEMORY": "128m", "SPARK_DAEMON_JAVA_OPTS": java_options()}
    environment = spark_submit_environment(os.environ) | small

    with contextlib.ExitStack() as running:

        def start(name: str, *words: str) -> Path:
            log = folder / f"{name}.log"
            process = subprocess.Popen(
                [_SPARK_CLASS, *words],
                env=environment | {"SPARK_WORKER_DIR": str(folder / name)},
                stdout=running.enter_context(log.open("wb")),
                stderr=subprocess.STDOUT,
                cwd=folder,
            )
            running.callback(process.wait)
            running.callback(process.terminate)
            return log

        start("master", _MASTER, "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        logs = [
            start(
                f"worker-{host}",
                *(_WORKER, "--host", host, "--webui-port", "0", "--cores", "1"),
                *("--memory", memory, url),
            )
            for host in _HOSTS
        ]
        wait_until(lambda: all(b"Successfully registered" in log.read_bytes() for log in logs))
        yield url
