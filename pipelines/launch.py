"""spark-submit for the jobs: the command line, and a process that becomes it."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from sequitur.errors import JavaError, PipelineError
from sequitur.pipelines.class_archive import ClassArchive
from sequitur.pipelines.jars import jars_of_spark
from sequitur.pipelines.java import find_java
from sequitur.pipelines.spark_settings import (
    JARS,
    MASTER,
    is_local,
    merged_jars,
    spark_defaults,
    spark_home,
)
from sequitur.pipelines.submitted import hand_output_on, java_locale

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


DEFAULT_MASTER: Final = "local[2,4]"
"""Two tasks side by side, each tried four times: with `local[2]` Spark runs a task once."""
WAITING_MASTER: Final = "local[4,4]"
"""For bolts with `concurrency`, which wait more than they work: two more tasks read meanwhile."""
REORDER_JOB: Final = Path(__file__).with_name("reorder.py")
PROCESS_JOB: Final = Path(__file__).with_name("process.py")
_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LOCAL_MEMORY: Final = "2g"
_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC\b")
_OPTIMIZED_LATE: Final = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
"""Ten times the JVM's own: it optimizes what runs once a row, and not what runs once a step. On two
cores its compiler takes a third of the processor time of a job's first minute from tasks."""
_COMPILER: Final = re.compile(r"-XX:[+-]?Tier")
_SHARING: Final = re.compile(r"-Xshare|ArchiveClassesAtExit|SharedArchiveFile")
_NOTHING_OF_IT: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""The JVM would say on standard output that an archive does not fit; it goes on without."""


def spark_submit_command(
    arguments: Sequence[str],
    *,
    job: Path = REORDER_JOB,
    master: str | None = None,
    options: Mapping[str, str] | None = None,
    checkpoint: str = "",
) -> list[str]:
    """The spark-submit command of a job, with the locked jars, which are fetched if need be.

    Options win over `spark-defaults.conf`, and that wins over our settings. Jars and Java options
    of all three join.
    """
    options = options or {}
    defaults = _defaults()
    given = {**defaults, **options}
    where = master or chosen_master(options)
    # Workers may have another Python; the driver's is the one that has this package.
    ours = dict.fromkeys(("spark.pyspark.python", "spark.pyspark.driver.python"), sys.executable)
    chosen = given.get(_JAVA_OPTIONS) or ""
    java = f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"
    if is_local(where):
        # Two tasks sort a full batch side by side; Spark's default is 1 GiB for everything.
        ours["spark.driver.memory"] = _LOCAL_MEMORY
        java = " ".join([java, *_local_java_options(chosen)])
    settings = {key: value for key, value in ours.items() if key not in given} | dict(options)
    settings[_JAVA_OPTIONS] = " ".join(filter(None, [java, chosen]))
    words = [str(spark_home() / "bin" / "spark-submit"), "--master", where]
    jars = merged_jars(defaults.get(JARS), options.get(JARS), jars_of_spark(checkpoint))
    words += ["--jars", jars]
    for key, value in settings.items():
        if key not in {MASTER, JARS}:  # a flag gives them, and a flag would win
            words += ["--conf", f"{key}={value}"]
    return [*words, str(job), *arguments]


def chosen_master(options: Mapping[str, str], default: str = DEFAULT_MASTER) -> str:
    return {**_defaults(), **options}.get(MASTER) or os.environ.get("MASTER") or default


def _defaults() -> dict[str, str]:
    return spark_defaults({**os.environ, "SPARK_HOME": str(spark_home())})


def _local_java_options(chosen: str) -> list[str]:
    """Return the options of a JVM that is driver and tasks at once; the user's options win."""
    options = []
    if not _COLLECTOR.search(chosen):
        # Nobody waits for the driver's pauses, and tasks would pay for a collector without pauses.
        options.append("-XX:+UseParallelGC")
    if not _COMPILER.search(chosen):
        options += _OPTIMIZED_LATE
    if not _SHARING.search(chosen):
        options += class_archive_options()
    return options


def class_archive(directory: Path) -> ClassArchive:
    """The archive of this Spark's classes; `sequitur setup` writes it."""
    jars = spark_home() / "jars"
    classes = f"{jars} {jars.stat().st_mtime_ns} {version('pyspark')}"
    return ClassArchive.of("spark", find_java().program, classes, directory)


def class_archive_options() -> list[str]:
    """Return the JVM's options that use the archive of Spark's classes; empty if there is none."""
    with contextlib.suppress(JavaError, OSError):
        return [*(used := class_archive(Path()).use()), *([_NOTHING_OF_IT] if used else [])]
    return []


def spark_submit_environment(environ: Mapping[str, str]) -> dict[str, str]:
    ours = {"SPARK_HOME": str(spark_home()), "PYSPARK_PYTHON": sys.executable}
    return {**environ, **java_locale(), **ours}


def require_user_name() -> None:
    """Refuse a user without a name: Spark's Hadoop classes end in a NullPointerException."""
    user = os.getuid()
    try:
        pwd.getpwuid(user)
    except KeyError:
        raise PipelineError(
            f"Spark cannot start: the user {user} has no entry in /etc/passwd. Add one, as by "
            f"`useradd --uid {user} sequitur` in the image, or run as another user"
        ) from None


def run_spark_submit(command: list[str]) -> NoReturn:
    """Become `spark_submit_command`, so that signals and exit status are the job's."""
    sys.stdout.flush()
    sys.stderr.flush()
    environ = spark_submit_environment(os.environ) | hand_output_on()
    # Python may know only ASCII letters; the JVM knows all, in the locale that it gets.
    encoded = (word.encode("utf-8", "surrogateescape") for word in command)
    os.execve(command[0], [*encoded] if java_locale() else command, environ)  # noqa: S606
