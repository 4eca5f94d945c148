"""A steady stream on each runner, and on the local one with its checkpoint in a slow S3."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from typing import TYPE_CHECKING, Any, Final

from benchmarks.reorder import OUTPUT
from benchmarks.reorder_latency import measure_latency
from benchmarks.s3_answers import Answer, answers_in_turn
from benchmarks.steady_stream import Steady
from tests.support.s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from benchmarks.reorder_latency import Latency

    Found = tuple[list[dict[str, Any]], dict[str, Any]]

LONG: Final = Steady(seconds=600, warm_up_s=120)
SHORT: Final = Steady(seconds=120, warm_up_s=60)
RUNNERS: Final = ("local", "spark")
ANSWER_S: Final = 0.03
_UNITS: Final = {
    "rows": "rows",
    "cpu_us_a_row": "us",
    "step_ms": "ms",
}
_PSS_AT: Final = ("start", "middle", "end")


def measure_steady(bootstrap_servers: str, console: Console, stream: Steady) -> Found:
    """The same stream on both runners, one after the other."""
    figures: list[dict[str, Any]] = []
    series: dict[str, Any] = {}
    for runner in RUNNERS:
        name = f"steady.{runner}"
        topic = f"runners-{name}"
        found = measure_latency(bootstrap_servers, topic, stream=stream, runner=runner)
        console.print(f"{name}: {found.as_json()}")
        figures += _figures(name, found)
        series[name] = found.series()
    return figures, series


def measure_s3(bootstrap_servers: str, console: Console, stream: Steady) -> Found:
    """The stream on the local runner, with a checkpoint whose store takes 30 ms for an answer.

    Each answer stays in build/bench/runners.s3.jsonl.
    """
    name = "s3.local"
    OUTPUT.mkdir(parents=True, exist_ok=True)
    told = OUTPUT / "runners.s3.jsonl"
    with S3Server(told) as server, _reached(server):
        server.fault(slow_s=ANSWER_S)
        place = f"s3://{BUCKET}/{uuid.uuid4().hex}"
        topic = f"runners-{name}"
        found = measure_latency(bootstrap_servers, topic, place, stream=stream, runner="local")
    answers = [Answer(*json.loads(line)) for line in told.read_text().splitlines()]
    console.print(f"{name}: {found.as_json()}")
    turns = answers_in_turn(answers)
    series = found.series() | {"answers_in_turn": turns}
    median = sorted(turns.values())[len(turns) // 2]
    figure = {"name": f"{name}.answers_in_turn", "value": median, "unit": "of a step, median"}
    return [*_figures(name, found), figure], {name: series}


def _figures(name: str, found: Latency) -> list[dict[str, Any]]:
    figures = []
    for what, value in found.as_json().items():
        if what.endswith("_s"):
            figures.append((what.removesuffix("_s"), value, "s"))
        elif what == "pss_mib":
            held = zip(_PSS_AT, value, strict=True)
            figures += [(f"pss.{when}", mib, "MiB") for when, mib in held]
        elif what in _UNITS:
            figures.append((what, value, _UNITS[what]))
    return [{"name": f"{name}.{what}", "value": one, "unit": unit} for what, one, unit in figures]


@contextlib.contextmanager
def _reached(server: S3Server) -> Iterator[None]:
    """Have programs that are started in the block find the server where they look for S3."""
    before = dict(os.environ)
    os.environ |= {
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": "us-east-1",
    }
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before
