"""docs/idle-partitions.md is true: the line that says what the job waits for, and for how long."""

from __future__ import annotations

import json
import re

from sequitur.consumer.reorder import ReorderSettings
from sequitur.testing import ReorderTester
from tests.support.pages import section

_NOW_MS = 1_795_000_000_000


def test_the_job_names_the_empty_partition_and_goes_without_it() -> None:
    """In the words of the page, and after the default time-out of the page."""
    text = section("idle-partitions.md", "See which partition the job waits for")
    (shown,) = re.findall(r"^```\n(.*?)\n```", text, re.DOTALL | re.MULTILINE)
    settings = ReorderSettings.model_validate(
        {
            "input_topics": ["readings"],
            "output_topic": "readings.ordered",
            "event_time": "json:at",
            "checkpoint": "none",
        }
    )
    with ReorderTester(settings, partitions=2, now_ms=_NOW_MS) as tester:
        tester.run([{"value": json.dumps({"at": _NOW_MS})}])
        assert tester.report().waits_for == shown
        for _ in range(29):
            tester.advance(1)
        assert tester.totals.held == 1
        tester.advance(1)
        assert len(tester.released) == 1
