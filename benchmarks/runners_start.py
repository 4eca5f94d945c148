"""How long each runner takes to its first row, and what the local one takes where nothing comes."""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
import sys
import tempfile
import time
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.measured_process import looking
from benchmarks.process import process_command
from benchmarks.reorder_contenders import DELAY_S, Task, sequitur_command
from benchmarks.reorder_first import first_row
from benchmarks.reorder_input import Workload, fill
from tests.house.extras import Environment
from tests.support.installed import build_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rich.console import Console

    Found = tuple[list[dict[str, Any]], dict[str, Any]]

EVENTS: Final = 1_000
ROUNDS: Final = 5
IDLE_S: Final = 60.0
_SETTLED_S: Final = 15.0
_LOOKS: Final = 12
_TOPOLOGY: Final = Path(__file__).parent / "chain_topology.py"


@dataclass(frozen=True, slots=True)
class _Way:
    """A command, as its users type it, in an environment.

    Attributes:
        name: What it is.
        command: Makes it; see `sequitur_command`.
        program: The program that it starts.
        environ: Its environment.
    """

    name: str
    command: Callable[..., list[str]]
    program: Path
    environ: Mapping[str, str]

    def __call__(self, task: Task, **how: Any) -> list[str]:
        """Return the command; what comes behind the interpreter's own words is the same."""
        words = self.command(task, **how)
        return [str(self.program), *words[words.index("sequitur") + 1 :]]


@contextlib.contextmanager
def _local_environment() -> Iterator[tuple[Path, dict[str, str]]]:
    """The program in an environment that has the wheel with `[local]`, and nothing on its path."""
    with tempfile.TemporaryDirectory(prefix="sequitur-bench-") as made:
        folder = Path(made)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "JAVA"))}
        clean |= {"PATH": "", "XDG_STATE_HOME": str(folder / "state")}
        venv.create(folder / "local", with_pip=False, symlinks=True)
        Environment(folder / "local", clean).install(f"{build_wheel(folder)}[local]")
        yield folder / "local" / "bin" / "sequitur", clean


def measure_start(bootstrap_servers: str, console: Console, *, rounds: int = ROUNDS) -> Found:
    """Start each in turns, where events wait, until the first row in order can be read."""
    topic = "runners-start"
    fill(bootstrap_servers, topic, Workload(events=EVENTS))
    local = functools.partial(sequitur_command, runner="local")
    chain = functools.partial(_chain, runner="local")
    with _local_environment() as (program, environ):
        ways = (
            _Way("reorder.local", local, program, environ),
            _Way("process.local", chain, program, environ),
            _Way("reorder.spark", sequitur_command, _here(), os.environ),
        )
        seconds: dict[str, list[float]] = {way.name: [] for way in ways}
        for number in range(1, rounds + 1):
            for way in ways:
                with first_row(bootstrap_servers, topic, way, way.environ, delay_s=0) as (first, _):
                    seconds[way.name].append(round(first.start_s, 3))
                console.print(f"start {number}: {way.name} {first.start_s:.2f} s")
    figures = [
        {"name": f"start.{name}", "value": round(statistics.median(found), 3), "unit": "s"}
        for name, found in seconds.items()
    ]
    return figures, {f"start.{name}": found for name, found in seconds.items()}


def measure_idle(bootstrap_servers: str, console: Console, *, seconds: float = IDLE_S) -> Found:
    """Let the local runner release what there is, and then send nothing more."""
    topic = "runners-idle"
    fill(bootstrap_servers, topic, Workload(events=EVENTS))
    local = functools.partial(sequitur_command, runner="local")
    with first_row(bootstrap_servers, topic, local, delay_s=DELAY_S) as (_, job):
        time.sleep(_SETTLED_S)
        with looking(job.pid, seconds / _LOOKS) as looks:
            time.sleep(seconds)
        if job.poll() is not None:
            raise RuntimeError(f"the job ended by itself, with status {job.returncode}")
    spent = [look.cpu_s - looks[0].cpu_s for look in looks]
    passed = [look.at_s - looks[0].at_s for look in looks]
    share = 100 * spent[-1] / passed[-1]
    console.print(f"idle: {share:.2f} % of a core, {looks[-1].pss_bytes / 2**20:,.0f} MiB")
    name = "idle.local.cpu"
    series = {
        "after_s": [round(one, 2) for one in passed],
        "cpu_s": [round(one, 2) for one in spent],
        "pss_mib": [round(look.pss_bytes / 2**20, 1) for look in looks],
        "processes": [look.processes for look in looks],
    }
    return [{"name": name, "value": round(share, 3), "unit": "% of a core"}], {name: series}


def _chain(task: Task, **how: Any) -> list[str]:
    return process_command(task, _TOPOLOGY, **how)


def _here() -> Path:
    return Path(sys.executable).with_name("sequitur")
