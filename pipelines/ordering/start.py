"""The reorder job, started from a program of one's own."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from sequitur.pipelines.ordering.job import run_reorder
from sequitur.pipelines.ordering.preflight import check_before_start
from sequitur.pipelines.ordering.stop import stop_on_signals
from sequitur.pipelines.session import build_session
from sequitur.pipelines.spark.tasks import start_python

if TYPE_CHECKING:
    from sequitur.consumer import ReorderSettings
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.ordering.ordered_step import StepFunction
    from sequitur.pipelines.ordering.progress import JobReport


def reorder(
    kafka: KafkaSettings,
    settings: ReorderSettings,
    *,
    on_step: StepFunction | None = None,
    stop: threading.Event | None = None,
    available_now: bool = False,
    drain: bool = False,
    reset_input: bool = False,
) -> JobReport:
    """Run the reorder job in this process, and return what it did.

    Rows go to the output topic as with `sequitur reorder`. Beside that `on_step` is given each step
    that has released rows, once they are in the topic: a function of yours, which may write them
    elsewhere. A step is given again, as the same rows under the same id, where the process died or
    the function raised before the job had noted that it returned: write by the id.

    The Spark session is the one of this process, with the job's options set, or a new one on
    `local[2,4]`; it is left running.

    Args:
        kafka: How to reach the brokers.
        settings: The job's settings.
        on_step: Given each step, in the driver, one after the other.
        stop: Ends the job once it is set, after the step that is at work. Without one, and called
            by the main thread, SIGINT and SIGTERM do that.
        available_now: End when what was there at the start is read.
        drain: At the end release what is held, too; rows that come later may then be late.
        reset_input: Once, when the job says so: read on where its log has got to, and recreated
            topics from their beginning.

    Raises:
        StepFunctionError: `on_step` raised; the next start gives the step again.
        ReorderError: The job cannot go on; the message says why.
        ConservationError: A row is unaccounted for.
        ProducerError: No broker can be reached, or authentication or TLS failed.
    """
    check_before_start(kafka, settings)
    spark = build_session(f"sequitur {settings.app_name}", checkpoint=settings.checkpoint)
    start_python(spark)
    ends = stop or threading.Event()
    is_program = stop is None and threading.current_thread() is threading.main_thread()
    with stop_on_signals(ends, spark) if is_program else contextlib.nullcontext():
        return run_reorder(
            spark,
            kafka,
            settings,
            stop=ends,
            available_now=available_now,
            drain=drain,
            reset_input=reset_input,
            on_done=lambda *_: None,
            on_step=on_step,
        )
