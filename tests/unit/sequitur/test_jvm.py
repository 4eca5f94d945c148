"""How a broker's JVM is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from sequitur._jvm import broker_command
from sequitur.pipelines.class_archive import ClassArchive


@pytest.mark.parametrize("short_lived", [False, True])
def test_only_a_short_lived_broker_does_without_the_optimising_compiler(
    tmp_path: Path, *, short_lived: bool
) -> None:
    """Under load it would cost throughput."""
    command = broker_command(
        Path("java"),
        "a.jar",
        heap_mib=256,
        short_lived=short_lived,
        log4j=tmp_path / "log4j2.properties",
        archive=ClassArchive(tmp_path / "shared", tmp_path / "own"),
    )
    assert ("-XX:TieredStopAtLevel=1" in command) == short_lived
    assert "-Xmx256m" in command
