"""Quix Streams' way to event-time order: windows of each key, sorted; runs in its environment.

    python quix_job.py BOOTSTRAP_SERVERS INPUT OUTPUT FOLDER DELAY_S WINDOW_MS

Exactly once, with a commit every 100 ms. It has no timers, so rows wait in windows that
close as the time of their partition passes their end by the delay. Rows behind that are dropped.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from quixstreams import Application

_COMMIT_S = 0.1


def main() -> None:
    """Run until it is ended."""
    brokers, source, sink, folder, delay_s, window_ms = sys.argv[1:]
    app = Application(
        broker_address=brokers,
        consumer_group=f"{sink}.quix",
        auto_offset_reset="earliest",
        commit_interval=_COMMIT_S,
        processing_guarantee="exactly-once",
        state_dir=Path(folder),
        loglevel="ERROR",
        producer_extra_config={"compression.type": "lz4", "linger.ms": 5},
    )
    arrived = app.topic(
        source,
        key_deserializer="bytes",
        value_deserializer="json",
        timestamp_extractor=lambda value, *_: value["occurred_at"],
    )
    ordered = app.topic(sink, key_serializer="bytes", value_serializer="json")
    windows = app.dataframe(arrived).tumbling_window(int(window_ms), grace_ms=1000 * int(delay_s))
    rows = windows.collect().final(closing_strategy="partition").apply(_in_order, expand=True)
    rows.to_topic(ordered)
    app.run()


def _in_order(window: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted(window["value"], key=lambda row: row["occurred_at"])


if __name__ == "__main__":
    main()
