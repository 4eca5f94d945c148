"""A subscription is created only where it is said where it begins."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from sequitur.cli import app


@pytest.mark.promise("sub-subscription-opened-created")
def test_create_has_to_say_where_it_begins() -> None:
    """The earliest message and the latest are different promises; none is guessed."""
    told = CliRunner().invoke(app, ["subscription", "create", "billing", "--topic", "orders"])
    assert told.exit_code == 2
    assert "--position" in told.output
