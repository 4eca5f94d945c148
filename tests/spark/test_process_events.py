"""Topologies on Spark: the tests of the local runner once more."""

from __future__ import annotations

import pytest

from tests.integration import test_process_events as of_local_runner
from tests.support.once_more import once_more

pytestmark = [pytest.mark.spark, pytest.mark.test_all]

globals().update(once_more(of_local_runner))
