"""The job on Spark, from Kafka to Kafka: the tests of the local runner once more."""

from __future__ import annotations

import pytest

from tests.integration import test_reorder_job as of_local_runner
from tests.support.once_more import once_more

pytestmark = [pytest.mark.spark, pytest.mark.test_all]

globals().update(once_more(of_local_runner))
