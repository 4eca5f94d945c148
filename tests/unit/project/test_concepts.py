"""docs/concepts.md is true: its six events, its table of topics, its equation."""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from sequitur.cli import demo
from sequitur.consumer.reorder import ReorderSettings
from sequitur.consumer.reorder.step_log import Totals
from sequitur.consumer.subscription.cursor_store import cursor_topic
from sequitur.consumer.topology import ProcessSettings
from sequitur.kafka.control import control_topic
from sequitur.kafka.settings import KafkaSettings
from sequitur.testing import ReorderTester
from tests.support.pages import rows_of, section
from tests.support.tree import ROOT

if TYPE_CHECKING:
    from sequitur.testing import ReorderedRecord

_PAGE: Final = "concepts.md"
_DAY: Final = "2026-11-27T"
_CREATORS: Final = {
    "consumer/subscription/compacted_topic.py",
    "pipelines/ordering/opening.py",
    "producer/daemon/daemon.py",
    "producer/delivery/routes.py",
}
"""Modules that have a topic created; those of `sequitur/kafka` do it for them."""


class _Line(NamedTuple):
    """A line of the example: what arrives, and what is so afterwards."""

    step: str
    arrives: str
    partition: str
    key: str
    event_time: str
    frontier: str
    released: str
    late: str
    held: str


def _ms(time: str) -> int:
    return round(1_000 * datetime.fromisoformat(f"{_DAY}{time}+00:00").timestamp())


def _shown(records: list[ReorderedRecord]) -> str:
    told = [
        f"{(one.key or b'').decode()} {json.loads(one.value or b'')['at'].removeprefix(_DAY)[:8]}"
        for one in records
    ]
    return ", ".join(told)


def _frontier(time_ms: int) -> str:
    epoch = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
    return "none" if time_ms < 0 else f"{epoch + timedelta(milliseconds=time_ms):%H:%M:%S}"


def test_the_six_events_come_out_as_the_page_says() -> None:
    """Its settings and its table, step by step."""
    text = section(_PAGE, "See every word in six events")
    (given,) = re.findall(r"^```toml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    settings = ReorderSettings.model_validate(tomllib.loads(given)["reorder"])
    lines = [_Line(*row) for row in rows_of(text)]
    assert [one.key for one in lines] == ["a", "b", "a", "a", "c", "b", ""]
    with ReorderTester(settings, partitions=2, now_ms=_ms(lines[0].arrives)) as tester:
        seen = []
        for line in lines:
            released, late = len(tester.released), len(tester.late)
            while tester.now_ms < _ms(line.arrives):
                released, late = len(tester.released), len(tester.late)
                tester.advance(1)
            if line.key:
                value = json.dumps({"at": f"{_DAY}{line.event_time}Z"})
                row = {"key": line.key, "value": value, "partition": line.partition}
                tester.run([row])
            report = tester.report()
            seen.append(
                line._replace(
                    frontier=_frontier(report.frontier_ms),
                    released=_shown(tester.released[released:]),
                    late=_shown(tester.late[late:]),
                    held=str(report.totals.held),
                )
            )
        (late_row,) = tester.late
        assert late_row.topic == "readings.ordered.late"
        assert late_row.header("sequitur-late-by-ms") == b"8000"
    assert seen == lines


def test_each_topic_that_is_created_is_in_the_table() -> None:
    """By the names that the settings give, and the modules that create any."""
    held = "\n".join(row[0] for row in rows_of(section(_PAGE, "Where did my row go?")))
    both = [
        ReorderSettings.model_validate(
            {
                "input_topics": ["in"],
                "output_topic": "OUTPUT",
                "event_time": "json:at",
                "checkpoint": "none",
                "mode": mode,
            }
        )
        for mode in ("ordered", "latest")
    ]
    kafka = KafkaSettings(bootstrap_servers="localhost:1")
    named = {
        *(topic for one in both for topic in one.written_topics),
        ProcessSettings().dead_letters("OUTPUT"),
        cursor_topic(kafka),
        control_topic(kafka),
        demo.INPUT_TOPIC,
        *demo.OUTPUT_TOPICS.values(),
    }
    assert {one for one in named if f"`{one}`" not in held} == set()
    creation = re.compile(r"(?<!def )\b(?:_?topics?\.ensure|create_topic|TopicCreation)\(")
    found = {
        str(path.relative_to(ROOT))
        for folder in ("producer", "consumer", "pipelines", "sequitur/cli")
        for path in (ROOT / folder).rglob("*.py")
        if creation.search(path.read_text())
    }
    assert found == _CREATORS


def test_the_equation_has_each_count() -> None:
    """One that is added to `Totals` belongs into it, or beside it."""
    text = section(_PAGE, "Do the counts add up?")
    (equation,) = re.findall(r"^read = (.*)$", text, re.MULTILINE)
    counts = inspect.signature(Totals).parameters
    assert {"read", "missing", *equation.split(" + ")} == {*counts, "held"}
    assert {row[0].strip("`") for row in rows_of(text)} < {*counts, "held"}


def test_the_glossary_has_thirty_words() -> None:
    """Each with a cell for each of the four systems."""
    rows = rows_of(section(_PAGE, "Glossary"))
    assert len({row[0] for row in rows}) == 30
    assert all(len(row) == 6 and all(row) for row in rows)
