"""Run as a program, by Python or by spark-submit: the settings that a session ends up with."""

from __future__ import annotations

import json
import sys
from typing import Any

from sequitur.pipelines.session import build_session


def main() -> None:
    """Print them as one line of JSON, with the marks of jars that the driver finds on its path."""
    options, marks = json.loads(sys.argv[1]), sys.argv[2:]
    spark = build_session("probe", options=options)
    context: Any = spark.sparkContext
    loader = context._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    shipped = context._jsc.sc().listJars().mkString(",").split(",")
    found = {
        "settings": dict(context.getConf().getAll()),
        "marks": [mark for mark in marks if loader.getResource(mark) is not None],
        "shipped": sorted(jar.rpartition("/")[2] for jar in shipped),
    }
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main()
