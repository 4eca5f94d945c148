"""A cluster in memory, and lives of a producer with a journal on it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.fake_wire import FakeWire
from tests.support.producers import make_producer, use

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sequitur.producer import IdempotentProducer


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> FakeWire:
    """A healthy cluster with one partition a topic."""
    wire = FakeWire()
    use(wire, monkeypatch)
    return wire


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., IdempotentProducer]:
    """Makes one life after the other of a producer with a journal."""

    def make(**settings: Any) -> IdempotentProducer:
        of_life = {"linger": timedelta(milliseconds=1), "name": "me"}
        return make_producer(**({"journal": tmp_path / "journal"} | of_life | settings))

    return make
