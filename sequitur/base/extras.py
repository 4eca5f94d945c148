"""The other packages in an environment: one that is missing, and one that takes our import name."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from sequitur.errors import MissingExtraError

EXTRAS: Final = {
    "cloudpickle": "local",
    "hdfs_native": "hdfs",
    "matplotlib": "plot",
    "obstore": "s3",
    "pandas": "spark",
    "psycopg": "state",
    "py4j": "spark",
    "pyarrow": "arrow",
    "pyspark": "spark",
    "sqlalchemy": "state",
}
"""The extra that brings a package, by the package's import name."""
DISTRIBUTION: Final = "sequitur-kafka"
"""pip's name for this project. In the index, `sequitur` is another one with our import name."""


def load(module: str, use: str, *, error: type[Exception] = MissingExtraError) -> Any:
    """Import a module that an extra brings, and return it.

    Args:
        module: Its name, with dots.
        use: What needs it, as the subject of a sentence.
        error: What is raised where it is not installed.

    Raises:
        MissingExtraError: It is not installed, or the error that was asked for.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        told = how_to_install(missing, use)
        if told is None:
            raise
        raise error(told) from missing


def how_to_install(missing: ModuleNotFoundError, use: str = "this") -> str | None:
    """Return how to install a missing module; None if no extra brings it."""
    package = (missing.name or "").partition(".")[0]
    extra = EXTRAS.get(package)
    if extra is None:
        return None
    return f"{use} needs the package {package}: pip install '{DISTRIBUTION}[{extra}]'"


def refusal_of_namesake() -> str | None:
    """Return why no program can start beside another project's `sequitur`; None without that.

    Both projects have files in `site-packages/sequitur`. The one that was installed last has
    overwritten `__init__.py`, and an uninstall of either takes that file away. Our own package had
    that name, too, until it became `sequitur-kafka`: its commands tell it from a stranger's.
    """
    from importlib.metadata import distributions  # noqa: PLC0415 - slow, and only programs ask

    for found in distributions(name="sequitur"):
        if "sequitur._entry" not in (found.read_text("entry_points.txt") or ""):
            return (
                f"the package sequitur {found.version} in this environment is another project: it "
                f"has the import name of {DISTRIBUTION}, and each overwrites files of the other. "
                f"Run `pip uninstall sequitur`, then `pip install --force-reinstall --no-deps` "
                f"with {DISTRIBUTION}, or with the path of your clone"
            )
    return None
