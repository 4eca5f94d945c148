"""The settings of the jobs, composed of the sections of the packages below."""

from __future__ import annotations

from consumer import ReorderSettings
from producer.settings import KafkaSettings, Settings


class ReorderJob(Settings):
    """What the reorder job needs."""

    kafka: KafkaSettings
    reorder: ReorderSettings
