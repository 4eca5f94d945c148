"""Which pyspark a driver and its tasks import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import py4j
import pyspark

from sequitur.pipelines import python_path
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    import pytest

_SPARK = Path(pyspark.__file__).parent
_ARCHIVES = sorted(map(str, (_SPARK / "python" / "lib").glob("*.zip")))
_IMPORTED = """if True:
    import sys
    from sequitur.pipelines.python_path import leave_out_archives
    leave_out_archives()
    import py4j, pyspark
    print(pyspark.__file__, py4j.__file__)
    print([name for name in (*sys.path, *sys.path_importer_cache) if "pyspark/python" in name])
"""


def test_the_archives_of_the_installed_spark_are_left_out() -> None:
    """They hold no bytecode: each start would take a second of CPU more."""
    assert {Path(name).name.partition("-")[0] for name in _ARCHIVES} == {"pyspark.zip", "py4j"}
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTED],
        check=True, capture_output=True, text=True, timeout=PATIENCE_S,
        env={"PYTHONPATH": ":".join(_ARCHIVES)},
    )  # fmt: skip
    assert done.stdout == f"{pyspark.__file__} {py4j.__file__}\n[]\n"


def test_archives_of_another_spark_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its modules fit its JVM, and others may not."""
    here, away, distribution = (tmp_path / name for name in ("here", "away", "spark"))
    for site in (here, away):
        (site / "pyspark").mkdir(parents=True)
        (site / "pyspark" / "__init__.py").touch()
    entries = [
        str(distribution / "python" / "lib" / "pyspark.zip"),
        str(away / "pyspark" / "python" / "lib" / "pyspark.zip"),
        str(here / "pyspark" / "python" / "lib" / "py4j-0.10.9.9-src.zip"),
        str(here / "pyspark" / "python" / "lib" / "pyspark.zip"),
        str(here),
    ]
    monkeypatch.setattr(sys, "path", list(entries))
    python_path.leave_out_archives()
    # Nor does that of py4j go where no py4j is installed.
    assert sys.path == [*entries[:3], entries[4]]
