"""The settings of the jobs, composed of the sections of the packages below."""

from __future__ import annotations

from sequitur.base.settings import Settings
from sequitur.consumer import ReorderSettings
from sequitur.consumer.topology import ProcessSettings
from sequitur.kafka.settings import KafkaSettings


class ReorderJob(Settings):
    """What the reorder job needs."""

    kafka: KafkaSettings
    reorder: ReorderSettings


class ProcessJob(ReorderJob):
    """What the process job needs: a topology behind the reorder stage."""

    process: ProcessSettings = ProcessSettings()
