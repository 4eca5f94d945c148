"""What the user has told Spark by its own files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sequitur.pipelines.spark_settings import (
    is_local,
    merged_jars,
    spark_defaults,
    spark_submit_flags,
    submitted_properties,
)

if TYPE_CHECKING:
    from pathlib import Path

_FILE = r"""
# a comment, and ! another
! spark.master  nobody
spark.master            spark://h:7077
spark.ui.enabled=true
  spark.a : b c
spark.jars  /a.jar,\
            /b.jar
spark.none
spark.path C:\\x\tA
spark.odd\ key v
"""


def test_file_is_read_as_java_reads_it(tmp_path: Path) -> None:
    """Any of its separators, lines that go on, comments and escapes."""
    (tmp_path / "spark-defaults.conf").write_text(_FILE)
    assert spark_defaults({"SPARK_CONF_DIR": str(tmp_path)}) == {
        "spark.master": "spark://h:7077",
        "spark.ui.enabled": "true",
        "spark.a": "b c",
        "spark.jars": "/a.jar,/b.jar",
        "spark.none": "",
        "spark.path": "C:\\x\tA",
        "spark.odd key": "v",
    }


def test_file_stands_beside_spark_where_no_folder_is_named(tmp_path: Path) -> None:
    assert spark_defaults({"SPARK_HOME": str(tmp_path)}) == {}
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.a b")
    assert spark_defaults({"SPARK_HOME": str(tmp_path)}) == {"spark.a": "b"}


_SUBMIT = ["/usr/bin/java", "-cp", "/a b:/c", "org.apache.spark.deploy.SparkSubmit"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--master", "local[3]", "job.py"], {"--master": "local[3]"}),
        (["--master=local[3]", "job.py"], {"--master": "local[3]"}),
        (["-v", "--conf", "spark.master=local", "job.py"], {"-v": "", "spark.master": "local"}),
        (["--conf=spark.app.name=a=b", "job.py"], {"spark.app.name": "a=b"}),
        (["job.py", "--master", "its own"], {}),
        (
            ["--properties-file", "f", "--load-spark-defaults", "--master", "m", "job.py"],
            {"--properties-file": "f", "--load-spark-defaults": "", "--master": "m"},
        ),
        (
            ["--extra-properties-file", "f", "--extra-properties-file", "g", "job.py"],
            {"--extra-properties-file": "f,g"},
        ),
        (["--name", "copies --master of x", "job.py"], {"--name": "copies --master of x"}),
        (
            ["--conf", "spark.driver.extraJavaOptions=-Da=1 spark.master=x", "pyspark-shell"],
            {"spark.driver.extraJavaOptions": "-Da=1 spark.master=x"},
        ),
    ],
)
def test_what_spark_submit_was_told_stands_in_whole_words(
    words: list[str], told: dict[str, str]
) -> None:
    """Blanks within one of them end nothing, and the program's own arguments tell nothing."""
    assert spark_submit_flags([*_SUBMIT, *words]) == told


def test_files_are_those_that_spark_submit_reads(tmp_path: Path) -> None:
    """By its flags: the defaults beside a file of properties only where it is told to."""
    (tmp_path / "spark-defaults.conf").write_text("spark.master defaults\nspark.a defaults")
    for name in ("properties", "extra", "more"):
        (tmp_path / name).write_text(f"spark.master {name}\nspark.{name} {name}")
    one = {"--properties-file": str(tmp_path / "properties")}
    extra = {"--extra-properties-file": f"{tmp_path / 'extra'},{tmp_path / 'more'}"}

    def read(flags: dict[str, str]) -> dict[str, str]:
        return submitted_properties(flags, {"SPARK_CONF_DIR": str(tmp_path)})

    defaults = {"spark.master": "defaults", "spark.a": "defaults"}
    properties = {"spark.master": "properties", "spark.properties": "properties"}
    assert read({}) == defaults
    assert read(one) == properties
    assert read(one | {"--load-spark-defaults": ""}) == defaults | properties
    assert read(extra).keys() == {"spark.master", "spark.a", "spark.extra", "spark.more"}


def test_another_program_was_told_nothing_by_spark_submit() -> None:
    """As one that has a driver in it, in YARN's cluster mode."""
    assert spark_submit_flags(["/usr/bin/java", "ApplicationMaster", "--master", "yarn"]) is None


def test_jars_of_several_lists_are_passed_once() -> None:
    """Whether as paths or as URIs; the first list's come first."""
    merged = merged_jars(
        "file:///x/a%20b.jar, /y.jar", None, "", "/x/a b.jar,hdfs://n/y.jar,/y.jar"
    )
    assert merged == "file:///x/a%20b.jar,/y.jar,hdfs://n/y.jar"


@pytest.mark.parametrize(
    ("master", "local"),
    [("local", True), ("local[2,4]", True), ("local-cluster[2,1,512]", True)]
    + [(master, False) for master in ("spark://h:7077", "yarn", "k8s://https://h")],
)
def test_masters_that_run_all_here(master: str, local: bool) -> None:
    """Whatever else stands in their names."""
    assert is_local(master) is local
