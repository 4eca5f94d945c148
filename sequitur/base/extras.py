"""Packages that only some uses need: who lacks one is told which extra of `sequitur` brings it."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from sequitur.errors import MissingExtraError

EXTRAS: Final = {
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
"""The extra that brings a package, by the name it is imported by."""


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
    """Return what a user is told of a module that was not found; None if no extra brings it."""
    package = (missing.name or "").partition(".")[0]
    extra = EXTRAS.get(package)
    if extra is None:
        return None
    return f"{use} needs the package {package}: pip install 'sequitur[{extra}]'"
