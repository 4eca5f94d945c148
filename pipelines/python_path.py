"""Python's path without Spark's archives, where the same modules are installed unpacked.

Spark puts `pyspark.zip` and that of py4j first on the path of a driver and of its tasks' processes.
They hold no bytecode: each process compiles anew what it imports of them, a second of CPU.
"""

from __future__ import annotations

import sys
from pathlib import Path


def leave_out_archives() -> None:
    """Import pyspark and py4j from where they are installed, if the archives are a part of that.

    Archives of another Spark stay: their modules fit the JVM that put them there.
    """
    for entry in [entry for entry in sys.path if _is_installed(Path(entry))]:
        sys.path.remove(entry)
        sys.path_importer_cache.pop(entry, None)


def _is_installed(entry: Path) -> bool:
    """Whether it is `SITE/pyspark/python/lib/NAME.zip`, and `SITE` is searched and has `NAME`."""
    if entry.suffix != ".zip" or entry.parts[-4:-1] != ("pyspark", "python", "lib"):
        return False
    site = entry.parents[3]
    packages = ("pyspark", entry.name.removesuffix(".zip").partition("-")[0])
    return str(site) in sys.path and all((site / one / "__init__.py").exists() for one in packages)
