"""`ReorderTester`: a reorder job on lists, for tests of users' own."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from sequitur.consumer.reorder import ReorderSettings
from sequitur.errors import StepFunctionError, TopicError
from sequitur.pipelines.local.tester import _copied
from sequitur.testing import ReorderTester
from tests.support.tree import ROOT
from tests.unit.pipelines.topology.test_step_runs import passing_topology

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sequitur.spark import OrderedStep

_T0 = 1_700_000_000_000


def _settings(**more: object) -> dict[str, object]:
    return {
        "input_topics": ["readings"],
        "output_topic": "ordered",
        "event_time": "json:at",
        "delay": "10 s",
        **more,
    }


def _rows(*times: int) -> Iterator[dict[str, str]]:
    for at in times:
        yield {"value": f'{{"at": {_T0 + at}}}', "key": "a"}


def test_the_pages_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands in docs/testing.md, where it is copied from."""
    page = (ROOT / "docs" / "testing.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(examples) >= 3
    for number, one in enumerate(examples):
        module = ModuleType(f"example_{number}")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(one, "docs/testing.md", "exec"), module.__dict__)


def test_settings_need_no_checkpoint_and_may_be_a_jobs_own(tmp_path: Path) -> None:
    """As a class with a checkpoint, which nothing is written to; wrong ones are refused."""
    jobs_own = ReorderSettings.model_validate(_settings(checkpoint=str(tmp_path / "state")))
    for settings in (_settings(), jobs_own):
        with ReorderTester(settings) as tester:
            tester.run(_rows(2_000, 1_000))
            tester.restart(settings=_settings(delay="0 s"))
            tester.run(_rows(3_000))
            assert len(tester.released) == 3
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValidationError, match="delay"):
        ReorderTester(_settings(delay="soon"))
    with pytest.raises(ValidationError, match=r"checkpoint\n  Field required"):
        ReorderSettings.model_validate(_settings())


def test_neither_spark_nor_java_is_loaded() -> None:
    asked = (
        "import sys; from sequitur.testing import ReorderTester;"
        "print(sorted({'pyspark', 'py4j'} & {*sys.modules}))"
    )
    told = subprocess.run(
        [sys.executable, "-c", asked], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert told.stdout.strip() == "[]"


def test_a_thousand_rows_take_less_than_a_second() -> None:
    """Of the processor's time: the machine may be at other work, too."""
    with ReorderTester(_settings(), partitions=3) as tester:
        begun_s = time.process_time()
        tester.run(_rows(*(37 * n % 1000 * 1000 for n in range(1000))))
        tester.drain()
        assert time.process_time() - begun_s < 1.0
        assert len(tester.released) == 1000


def test_each_row_is_written_once_whatever_is_repeated() -> None:
    """The function raises when the rows are out and the step is not done; the batch comes again."""
    fails = [True]

    def once(_step: OrderedStep) -> None:
        if fails and fails.pop():
            raise ConnectionError("the database is away")

    with ReorderTester(_settings(), on_step=once) as tester:
        with pytest.raises(StepFunctionError, match="step 0"):
            tester.run(_rows(0, 20_000, 5_000))
        assert len(tester.released) == 2
        committed = tester.folder / "spark" / "commits" / "0"
        assert committed.exists()  # all the same: the batch was staged
        tester.restart(repeats=True)
        assert not committed.exists()
        tester.run()
        assert committed.exists()
        assert [one.offset for one in tester.released] == [0, 1]
        tester.drain()
        assert (tester.totals.read, tester.totals.released) == (3, 3)


def test_what_waits_goes_out_once_time_has_passed() -> None:
    """A partition that is silent is waited for no more."""
    with ReorderTester(_settings(idle_timeout="30 s"), partitions=2, now_ms=_T0) as tester:
        tester.run([{"value": f'{{"at": {_T0 + at}}}', "partition": 0} for at in (0, 20_000)])
        assert tester.released == []
        for _ in range(29):
            tester.advance(1)
        assert tester.released == []
        for _ in range(2):
            tester.advance(1)
        assert len(tester.released) == 2


def test_a_topology_is_given_the_ordered_rows() -> None:
    with ReorderTester(_settings(), passing_topology(), partitions=2) as tester:
        tester.run(_rows(3_000, 1_000, 2_000, 30_000))
        tester.drain()
        report = tester.report()
    assert report.processed is not None
    assert (report.processed["acked"], report.processed["pending"]) == (4, 0)


@pytest.mark.parametrize("missing", ["pyspark", "cloudpickle"])
def test_tasks_of_no_module_run_with_either_runners_extra(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """Plain pickle takes no function that is made in another one; both extras bring what does."""
    monkeypatch.setitem(sys.modules, missing, None)
    told = ["by value"]
    assert _copied(lambda: told)() == told
    assert _copied(lambda: told)() is not told


def test_a_row_for_a_topic_that_is_not_there_is_refused() -> None:
    with (
        ReorderTester(_settings()) as tester,
        pytest.raises(TopicError, match="'other' has no partition 0"),
    ):
        tester.run([{"value": "x", "topic": "other"}])
