"""Timestamps that are no milliseconds, which Spark cannot hold: local tests on Spark."""

from __future__ import annotations

import pytest

from tests.integration import test_odd_timestamps as of_local_runner
from tests.support.once_more import once_more

pytestmark = pytest.mark.spark

globals().update(once_more(of_local_runner))
