"""Refuses a job before it starts, as far as possible: Spark alone takes ten seconds to start.

The job checks most of this again, since it may have changed meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import tempfile
from typing import TYPE_CHECKING, Final

from sequitur.base.units import parse_address
from sequitur.errors import CheckpointError, ReorderError, TopicError
from sequitur.kafka.admin import KafkaTopics
from sequitur.kafka.broker_check import require_broker
from sequitur.pipelines.store.ownership import refuse_if_owned
from sequitur.pipelines.store.storage import LocalStorage, local_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sequitur.consumer.reorder import ReorderSettings
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.ordering.opening import ProcessStage

SAME_IN_JAVA: Final = re.compile(r"(?:[A-Za-z0-9_.*+?|()-]|\\\.)+")
"""Patterns of these mean the same to Python and Java; others are left to the job."""


def check_before_start(
    kafka: KafkaSettings, settings: ReorderSettings, process: ProcessStage | None = None
) -> None:
    """Check all that a job needs and that can be checked without Spark."""
    written, aside = list(settings.written_topics), [settings.late, settings.quarantine]
    if process is not None:
        from sequitur.pipelines.topology.topology_file import check_settings  # noqa: PLC0415 - only with a topology

        check_settings(settings, process.settings, process.topology)
        written += process.topology.topics(settings.output_topic)
        aside.append(process.settings.dead_letters(settings.output_topic))
        written.append(aside[-1])
    if (checkpoint := local_path(settings.checkpoint)) is not None:
        _check_writable(checkpoint)
        refuse_if_owned(LocalStorage(checkpoint), watches=False)
    if settings.metrics is not None:
        _check_free(settings.metrics)
    require_broker(kafka)
    topics = KafkaTopics(kafka)
    _check_topics(topics, settings, written)
    for topic in aside:
        if topics.partitions(topic) is not None:
            topics.require_keyless(topic)


def check_before_spark(
    kafka: KafkaSettings, settings: ReorderSettings, process: ProcessStage | None = None
) -> None:
    """Check the same for a job on Spark, whose client knows fewer logins."""
    kafka.java()
    check_before_start(kafka, settings, process)


def _check_writable(checkpoint: Path) -> None:
    """Check that a folder can be made or written to, by doing it; remove what was made."""
    there = next(path for path in (checkpoint, *checkpoint.parents) if os.path.lexists(path))
    if not there.is_dir():
        raise CheckpointError(f"checkpoint {checkpoint}: {there} is not a folder")
    made: list[Path] = []
    try:
        for path in reversed((checkpoint, *checkpoint.parents)):
            if not os.path.lexists(path):
                path.mkdir()
                made.insert(0, path)
        with tempfile.TemporaryFile(dir=checkpoint, buffering=0) as file:
            file.write(b"x")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(
            f"checkpoint {str(checkpoint)!r} cannot be written: {reason} (in {there})"
        ) from error
    finally:
        for path in made:
            with contextlib.suppress(OSError):  # somebody may have put something into it
                path.rmdir()


def _check_free(address: str) -> None:
    host, port = parse_address(address)
    try:
        family, kind, protocol, _name, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
    except OSError as error:
        raise ReorderError(f"metrics: cannot listen on {address}: {error.strerror}") from error


def _check_topics(topics: KafkaTopics, settings: ReorderSettings, written: Sequence[str]) -> None:
    for topic in settings.input_topics:
        topics.require(topic)
    pattern = settings.input_pattern
    if pattern is not None and SAME_IN_JAVA.fullmatch(pattern) is not None:
        try:
            matching = re.compile(pattern)
        except re.error as error:
            raise TopicError(f"input_pattern {pattern!r}: {error}") from error
        topics.matching(pattern, lambda topic: matching.fullmatch(topic) is not None, written)
    if (wanted := settings.output_partitions) is not None:
        topic = settings.output_topic
        topics.check_partitions(topic, topics.partitions(topic), wanted)
