"""What Spark does to the tasks that write: it doubles them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sequitur.base.stored import dump
from sequitur.pipelines.launch import spark_submit_command, spark_submit_environment
from sequitur.pipelines.sink.step_planner import StepPlanner
from sequitur.producer import KafkaSettings
from tests.support.document_folder import DocumentFolder
from tests.support.output_reading import read_output
from tests.support.spark_cluster import SparkCluster, small_application
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker

pytestmark = pytest.mark.spark

_ROWS = 5000
_SUBMIT_TIMEOUT_S = 8 * PATIENCE_S


@pytest.mark.test_all
@pytest.mark.promise("order-attempts-task-run")
@pytest.mark.slow
def test_speculative_copy_doubles_nothing(
    broker: Broker, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Of a task that hangs Spark starts a copy on another host: the rows are there once."""
    topic = make_topic(partitions=1)
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    plans = StepPlanner(kafka, app=f"app-{topic}", documents=DocumentFolder())
    plans.open({topic: 1}, newest=-1, done=-1, sent=None)
    plan = json.dumps(dump(plans.of_step(0, {topic: 1}).plan))
    with SparkCluster(tmp_path, memory="600m") as cluster:
        command = spark_submit_command(
            [kafka.bootstrap_servers, topic, plan, str(_ROWS)],
            job=Path(__file__).with_name("speculation_job.py"),
            master=cluster.url,
            options={
                **small_application(),
                "spark.task.maxFailures": "1",
                "spark.speculation": "true",
                "spark.speculation.interval": "100ms",
                "spark.speculation.task.duration.threshold": "1s",  # a stage of one task
            },
        )
        done = subprocess.run(
            command,
            env=spark_submit_environment(os.environ),
            capture_output=True,
            text=True,
            timeout=_SUBMIT_TIMEOUT_S,
            check=False,
        )
    assert f"written {_ROWS}\n" in done.stdout, done.stdout + done.stderr
    found = [int(record.value or b"") for record in read_output(kafka, topic)]
    assert found == list(range(_ROWS))
