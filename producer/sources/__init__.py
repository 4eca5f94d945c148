"""Where the daemon's events come from: one module a source, one protocol for all."""

from producer.sources._cpu import CpuSource, CpuUsage
from producer.sources._source import Source, SourceEvent

__all__ = ["CpuSource", "CpuUsage", "Source", "SourceEvent"]
