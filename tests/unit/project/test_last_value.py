"""docs/last-value-per-key.md is true: its four lines, and where its rows go."""

from __future__ import annotations

import json
import re
import tomllib

from sequitur.consumer.reorder import ReorderSettings
from sequitur.testing import ReorderTester
from tests.support.pages import rows_of, section


def test_four_lines_keep_the_last_value() -> None:
    """Each row of the table goes where the table says; the last of a key is its newest."""
    text = section("last-value-per-key.md", "Configure it")
    (given,) = re.findall(r"^```toml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    wanted = tomllib.loads(given)["reorder"]
    assert len(wanted) == 4
    settings = ReorderSettings.model_validate({**wanted, "checkpoint": "none"})
    rows = rows_of(text)
    with ReorderTester(settings) as tester:
        for _, key, time, topic in rows:
            before = len(tester.records(topic))
            value = json.dumps({"at": f"2026-11-27T{time}Z"})
            tester.run([{"key": key, "value": value}])
            assert [one.value for one in tester.records(topic)[before:]] == [value.encode()]
        newest = {one.key: json.loads(one.value or b"")["at"] for one in tester.released}
        assert (tester.totals.read, tester.totals.late, tester.totals.held) == (4, 1, 0)
    assert newest == {
        b"sensor-1": "2026-11-27T12:00:30Z",
        b"sensor-2": "2026-11-27T12:00:10Z",
    }
