"""Commit tokens as a test looks at them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from sequitur.consumer import commits_group, read_token
from sequitur.pipelines.kafka.connections import Connections

if TYPE_CHECKING:
    from sequitur.consumer import CommitToken, OutputPartition
    from sequitur.producer import KafkaSettings


def token_of(kafka: KafkaSettings, app: str, where: OutputPartition) -> CommitToken | None:
    """The token of a partition, None without one."""
    with contextlib.closing(Connections(kafka)) as connections:
        found = connections.run(connections.coordinators.offsets(commits_group(app), [where]))
    return read_token(where, *found[where])
