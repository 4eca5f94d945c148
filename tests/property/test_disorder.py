"""`sequitur measure` says of each delay what the job does with it, on the same records."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sequitur.cli.disorder import Disorder
from sequitur.consumer.reorder import ReorderSettings
from sequitur.kafka.partition import SourcePartition
from sequitur.testing import ReorderTester
from tests.support.examples import examples

_T0: Final = 1_700_000_000_000
_PARTITIONS: Final = tuple(SourcePartition("in", number) for number in range(3))
_DELAYS_MS: Final = (1_000, 5_000, 10_000)
_IDLE_MS: Final = 150
"""The tester looks at its input as a job with this time-out does: twice in 200 ms at least."""


class _Sent(NamedTuple):
    partition: int
    key: bytes | None
    passed_ms: int  # since the record before
    age_ms: int | None  # how much older its event time is; None without one
    value: str = ""

    def at(self, now_ms: int) -> bytes:
        """Return its value."""
        if self.age_ms is None:
            return self.value.encode()
        return f'{{"at":{now_ms - self.age_ms}}}'.encode()


_ages = st.one_of(
    st.integers(0, 3_000), st.integers(0, 12_000), st.sampled_from([0, 1_000, 5_000, 7_001])
)
_records = st.lists(
    st.builds(
        _Sent,
        st.sampled_from([0, 0, 1, 2]),
        st.sampled_from([b"a", b"b"]),
        st.sampled_from([0, 1, 40, 100, 190]),
        st.one_of(*[_ages] * 9, st.just(-700_000), st.none()),
        st.sampled_from(["{}", '{"at":"soon"}', "", '{"at":5}']),
    ),
    min_size=1,
    max_size=14,
)
_records = st.one_of(_records, _records.map(lambda sent: [*sent[:-1], sent[-1]._replace(key=None)]))


def _settings(**more: Any) -> ReorderSettings:
    return ReorderSettings.model_validate(
        {
            "input_topics": ["in"],
            "output_topic": "out",
            "checkpoint": "none",
            "event_time": "json:at",
            "delay": "auto",
            "idle_timeout": timedelta(milliseconds=_IDLE_MS),
            **more,
        }
    )


def _measured(sent: list[_Sent], job: ReorderSettings) -> Disorder:
    disorder, now_ms = Disorder(job, _PARTITIONS), _T0
    for one in sent:
        now_ms += one.passed_ms
        disorder.observe(
            _PARTITIONS[one.partition],
            timestamp_ms=now_ms,
            key=one.key,
            value=one.at(now_ms),
            headers=(),
        )
    return disorder


def _reordered(sent: list[_Sent], job: ReorderSettings) -> ReorderTester:
    """Return the job once it has read each record when it came, and released all."""
    tester = ReorderTester(job, partitions=len(_PARTITIONS), now_ms=_T0)
    for one in sent:
        tester.now_ms += one.passed_ms
        tester.run()
        tester.run([{"key": one.key, "value": one.at(tester.now_ms), "partition": one.partition}])
    tester.drain()
    return tester


@pytest.mark.promise("cli-measure-as-the-job")
@settings(max_examples=examples(0.1))
@given(
    sent=_records,
    delay_ms=st.sampled_from(_DELAYS_MS),
    key_ttl_ms=st.sampled_from([86_400_000, 2_000]),
    idle_ms=st.sampled_from([_IDLE_MS, _IDLE_MS, 3_600_000]),
    rescue=st.booleans(),
)
def test_each_share_is_what_the_job_does_with_that_delay(
    *, sent: list[_Sent], delay_ms: int, key_ttl_ms: int, idle_ms: int, rescue: bool
) -> None:
    """In order is what is released and not late; without rescue, what came in time.

    Where a partition falls idle, and nothing goes out by that, the job has not moved the frontier
    when the next record comes. What nothing can rescue may be late here and not in the job.
    """
    job = _settings(
        key_ttl=timedelta(milliseconds=key_ttl_ms),
        idle_timeout=timedelta(milliseconds=idle_ms),
        rescue=rescue,
    )
    report = _measured(sent, job).report()
    delay = timedelta(milliseconds=delay_ms)
    with _reordered(sent, job.model_copy(update={"delay": delay})) as tester:
        assert dict(tester.totals.quarantined) == report.quarantined
        found = next((one for one in report.delays if one.delay_ms == delay_ms), None)
        assert (found is None) == (report.usable == 0)
        if found is None:
            return
        assert found.in_order + found.late == report.usable
        late = found.late if rescue else found.late + found.rescued
        assert len(tester.released) + len(tester.late) == report.usable
        is_rescued = rescue and key_ttl_ms > max(_DELAYS_MS) and all(one.key for one in sent)
        if is_rescued or idle_ms > max(_DELAYS_MS):
            assert len(tester.late) == tester.totals.late == late
        else:
            assert len(tester.late) <= late
