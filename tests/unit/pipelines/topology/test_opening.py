"""A job with a topology is opened: its topics are looked at before its checkpoint is its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sequitur.consumer.topology import TopologyBuilder, bolt
from sequitur.errors import TopicError
from sequitur.testing import ReorderTester

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.consumer.topology import Tuple

_AT_MS = 1_700_000_000_000
_SETTINGS = {
    "input_topics": ["in"],
    "output_topic": "out",
    "event_time": "json:at",
    "delay": "0 s",
}


@bolt(fields=("value",))
def passes(given: Tuple) -> Iterator[object]:
    """Emit each value as it is."""
    yield given["value"]


def test_a_start_that_a_topic_refuses_leaves_the_checkpoint_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The dead-letter topic has another name with another output topic, and nothing was written."""
    builder = TopologyBuilder("passes")
    builder.set_spout("events")
    builder.set_bolt("passes", passes).local_grouping("events")
    builder.set_output("out", key=None, value="value").local_grouping("passes")
    with ReorderTester(_SETTINGS, builder.build(), now_ms=_AT_MS) as tester:

        def require_keyless(topic: str) -> None:
            if topic == "out.dead-letter":
                raise TopicError(f"topic {topic!r} is compacted")

        monkeypatch.setattr(tester._topics, "require_keyless", require_keyless)
        with pytest.raises(TopicError, match=r"'out\.dead-letter' is compacted"):
            tester.run([{"value": f'{{"at": {_AT_MS}}}'}])
        tester.restart(settings={**_SETTINGS, "output_topic": "another"})
        tester.run()
        assert len(tester.records("another")) == 1
