"""compose.yaml says what Docker understands, and what the project promises of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any

import pytest

from tests.support.compose_file import COMPOSE_FILE, default_image, read_compose_file
from tests.support.tree import ROOT

_TOP_LEVEL = {"name", "services", "volumes"}
_SERVICE = {
    "environment",
    "healthcheck",
    "hostname",
    "image",
    "ports",
    "restart",
    "stop_grace_period",
    "volumes",
}


def test_only_known_keys_are_used() -> None:
    """A mistyped key is no setting: Docker refuses the file, and so does this test."""
    content = read_compose_file({})
    assert {key for key in content if not key.startswith("x-")} == _TOP_LEVEL
    for name, service in content["services"].items():
        assert set(service) <= _SERVICE, name


def test_the_image_is_the_one_the_tests_use() -> None:
    """KAFKA_IMAGE chooses it, and without that it is Apache's, of the lock's version."""
    assert _broker({})["image"] == default_image()
    version = default_image().partition(":")[2]
    assert f"| Apache Kafka {version} |" in (ROOT / "docs" / "deploy.md").read_text()
    assert _broker({"KAFKA_IMAGE": "own:1"})["image"] == "own:1"


def test_the_broker_is_reached_from_this_machine_only() -> None:
    """The port is published on 127.0.0.1, and the address that Kafka hands out is that one."""
    service = _broker({"KAFKA_PORT": "10000"})
    assert service["ports"] == ["127.0.0.1:10000:9092"]
    assert "EXTERNAL://127.0.0.1:10000" in service["environment"]["KAFKA_ADVERTISED_LISTENERS"]


def test_each_volume_is_declared() -> None:
    content = read_compose_file({})
    used = {
        volume.partition(":")[0]
        for service in content["services"].values()
        for volume in service.get("volumes", ())
    }
    assert used == set(content["volumes"])


def test_settings_are_text() -> None:
    """YAML's own numbers and truth values reach a container in ways that depend on the reader."""
    for service in read_compose_file({})["services"].values():
        assert {type(value) for value in service["environment"].values()} == {str}


def test_compose_itself_accepts_the_file() -> None:
    """Where Docker's compose plugin is installed, it has the last word."""
    command = ["docker", "compose"]
    if shutil.which("docker") is None or _run([*command, "version"]) != 0:
        pytest.skip("Docker's compose plugin is not installed; the other tests stand for it")
    assert _run([*command, "-f", str(COMPOSE_FILE), "config", "--quiet"]) == 0


def _broker(environ: dict[str, str]) -> Any:
    return read_compose_file(environ)["services"]["kafka-1"]


def _run(command: list[str]) -> int:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("KAFKA_")}
    return subprocess.run(command, env=environ, capture_output=True, check=False).returncode
