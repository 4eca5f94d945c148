"""A Spark cluster of its own on this machine: a master, and two workers on hosts of two names.

Spark runs a speculative copy of a task on another host only, so one host will not do.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from typing import TYPE_CHECKING, Any, Final, Self

import psutil

from sequitur.base import ports as _ports
from sequitur.pipelines.launch import class_archive_options, spark_submit_environment
from sequitur.pipelines.spark_settings import spark_home
from tests.spark.submitted_job import SHORT_LIVED
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_SPARK_CLASS: Final = spark_home() / "bin" / "spark-class"
_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
_EXECUTOR: Final = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_HOSTS: Final = ("127.0.0.1", "127.0.0.2")
WORKERS: Final = len(_HOSTS)
_TIMEOUT_S: Final = 2 * PATIENCE_S
_END_TIMEOUT_S: Final = PATIENCE_S
_POLL_S: Final = 0.05
_NO_PROXY: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def read_page(address: str) -> str:
    with _NO_PROXY.open(address, timeout=PATIENCE_S) as page:
        return str(page.read().decode())


def java_options() -> str:
    """Return what each of its JVMs starts quickly by."""
    return " ".join([SHORT_LIVED, *class_archive_options()])


def small_application() -> dict[str, str]:
    """Return Spark's settings of an application that fits on the cluster beside all others."""
    return {
        "spark.driver.extraJavaOptions": java_options(),
        "spark.executor.extraJavaOptions": java_options(),
        "spark.driver.host": _ports.HOST,
        "spark.driver.bindAddress": _ports.HOST,
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
    }


class SparkCluster:
    """To be used by `with`: its processes run as long as the block, and their executors.

    Args:
        folder: Of the processes; they run in it, and so do their executors.
        memory: What a worker has for executors.
        environment: What workers, and so executors, find in theirs beside the usual.
        popen: How workers, and so executors, are started: as another user.

    Attributes:
        url: The master's, as applications name it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        memory: str = "1g",
        environment: Mapping[str, str] | None = None,
        **popen: Any,
    ) -> None:
        port = _ports.choose_free()
        self.url = f"spark://{_ports.HOST}:{port}"
        self._port = port
        self._page = _ports.choose_free({port})
        self._folder = folder
        self._memory = memory
        self._told = environment or {}
        self._popen = popen
        self._processes: dict[str, psutil.Popen] = {}

    def __enter__(self) -> Self:
        try:
            self._start("master", _MASTER, "--port", str(self._port), host=_ports.HOST)
            self._wait(lambda: self._log("master").count("I have been elected leader") == 1)
            for host in _HOSTS:
                words = ("--cores", "1", "--memory", self._memory, self.url)
                self._start(f"worker-{host}", _WORKER, *words, host=host, **self._popen)
            self._wait(lambda: len(self.state()["workers"]) == WORKERS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        started: list[psutil.Process] = [*self._processes.values()]
        below = [one for process in started for one in _below(process)]
        for process in reversed(started):
            process.terminate()
        left = psutil.wait_procs([*started, *below], _END_TIMEOUT_S)[1]
        for one in left:
            one.kill()
        psutil.wait_procs(left)

    def state(self) -> dict[str, Any]:
        """Return what the master says of itself, as its page's /json/ has it."""
        found: dict[str, Any] = json.loads(read_page(f"http://{_ports.HOST}:{self._page}/json/"))
        return found

    def cores(self) -> dict[str, int]:
        """Return how many cores each application has that runs, by its id."""
        return {one["id"]: one["cores"] for one in self.state()["activeapps"]}

    def applications(self) -> set[str]:
        """Return the ids of all applications that ever registered."""
        state = self.state()
        return {one["id"] for one in (*state["activeapps"], *state["completedapps"])}

    def executors(self, application: str) -> list[psutil.Process]:
        return [
            one
            for process in self._processes.values()
            for one in process.children()
            if {_EXECUTOR, application} <= {*words_of(one)}
        ]

    def _start(self, name: str, *words: str, host: str, **popen: Any) -> None:
        page = str(self._page) if name == "master" else "0"
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes[name] = psutil.Popen(
                [_SPARK_CLASS, words[0], "--host", host, "--webui-port", page, *words[1:]],
                env=self._environment(name),
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                **popen,
            )

    def _environment(self, name: str) -> Mapping[str, str]:
        # What a job finds in its own environment, its tasks must not find in that of the tests.
        names = {"PATH", "HOME", "LANG", "JAVA_HOME"}
        usual = {key: value for key, value in os.environ.items() if key in names}
        small = {"SPARK_DAEMON_MEMORY": "128m", "SPARK_DAEMON_JAVA_OPTS": java_options()}
        small["SPARK_WORKER_DIR"] = str(self._folder / name)
        return {**spark_submit_environment(usual), **small, **self._told}

    def _log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def _wait(self, holds: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + _TIMEOUT_S
        while not holds():
            for name, process in self._processes.items():
                assert process.poll() is None, self._log(name)
            assert time.monotonic() < deadline_s, [*map(self._log, self._processes)]
            time.sleep(_POLL_S)


def _below(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def words_of(process: psutil.Process) -> list[str]:
    """Return a process's command line, as `ps` shows it; nothing of one that is gone."""
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:
        return []
