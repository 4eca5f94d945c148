"""The tests of each product: `make test-producer` and its like run one lane."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Final

LANES: Final = {
    "producer": (
        "unit/producer/*",
        "property/test_file_source_crashes.py",
        "property/test_journal_machine.py",
        "property/test_producer_faults.py",
        "property/test_record_timestamps.py",
        "property/test_replay_schedule.py",
        "property/test_sequencer_machine.py",
        "integration/test_copied_journals.py",
        "integration/test_cpu_feed.py",
        "integration/test_daemon*.py",
        "integration/test_dir_source.py",
        "integration/test_file_source.py",
        "integration/test_forgotten_identity.py",
        "integration/test_health.py",
        "integration/test_http_*.py",
        "integration/test_kill_rounds.py",
        "integration/test_moving_leaders.py",
        "integration/test_producer.py",
        "integration/test_replay_source.py",
        "integration/test_secured_broker.py",
        "integration/test_small_disk.py",
        "integration/test_stdin_source.py",
    ),
    "topology": (
        "unit/consumer/topology/*",
        "unit/pipelines/topology/*",
        "unit/pipelines/test_process_settings.py",
        "property/test_acker.py",
        "property/test_attempts_at_steps.py",
        "property/test_joins.py",
        "property/test_late_for_windows.py",
        "property/test_key_files.py",
        "property/test_keyed_state.py",
        "property/test_run_again.py",
        "property/test_topology_runs.py",
        "property/test_transaction*.py",
        "property/test_windows*.py",
        "integration/local/test_keyed_*.py",
        "integration/test_dlq_command.py",
        "integration/test_process_events.py",
        "integration/test_refused_by_postgres.py",
        "integration/test_state_postgres.py",
        "integration/test_transactional_examples.py",
        "integration/test_transaction_steps.py",
        "spark/test_keyed_*.py",
        "spark/test_process_*.py",
        "spark/test_transaction*.py",
    ),
    "subscription": (
        "unit/consumer/subscription/*",
        "property/test_cursor_*.py",
        "property/test_dispatch_machine.py",
        "property/test_job_subscription.py",
        "integration/subscriptions/*",
        "integration/test_backlog_quota.py",
        "integration/test_subscribed_job.py",
        "spark/test_subscri*.py",
    ),
    "shell": (
        "containers/*",
        "unit/base/*",
        "unit/kafka/*",
        "unit/project/*",
        "unit/sequitur/*",
        "unit/support/*",
        "integration/test_broker_fixture.py",
        "integration/test_demo.py",
        "integration/test_embedded_broker.py",
        "integration/test_kafka_topics.py",
        "integration/test_measure_command.py",
        "integration/test_quickstart.py",
        "integration/test_readme_session.py",
        "integration/test_tail_command.py",
        "integration/test_verify_command.py",
    ),
    "reorder": (
        "unit/consumer/reorder/lateness/*",
        "unit/consumer/reorder/step_log/*",
        "unit/consumer/reorder/time/*",
        "unit/pipelines/*",
        "property/*",
        "integration/test_block_writer.py",
        "integration/test_compacted_ranges.py",
        "integration/test_read_as_others_read.py",
        "integration/local/*",
        "integration/test_data_loss.py",
        "integration/test_forgotten_rows.py",
        "integration/test_half_written_steps.py",
        "integration/test_late_rows.py",
        "integration/test_local_jobs.py",
        "integration/test_local_runner.py",
        "integration/test_moved_checkpoint.py",
        "integration/test_odd_timestamps.py",
        "integration/test_random_histories.py",
        "integration/test_reorder_job.py",
        "integration/test_step_plans.py",
        "integration/test_too_large_rows.py",
        "integration/test_topic_growth.py",
        "spark/*",
    ),
}
"""Patterns of paths below `tests`, by lane: the first lane that has one is the file's."""


def lane_of(path: str) -> str | None:
    """Return the lane of a test file, given by its path below `tests`."""
    lanes = (
        lane for lane, patterns in LANES.items() if any(fnmatch(path, one) for one in patterns)
    )
    return next(lanes, None)
