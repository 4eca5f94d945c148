"""Rows of the input that are gone: Spark finds out by itself, as the local runner does."""

from __future__ import annotations

import pytest

from tests.integration import test_data_loss as of_local_runner
from tests.support.once_more import once_more

pytestmark = pytest.mark.spark

globals().update(once_more(of_local_runner))
