"""Where Python looks for modules, in the driver and in the processes of tasks.

Spark puts `pyspark.zip` and that of py4j first on the path of both. They hold no bytecode: each
process compiles anew what it imports of them, a second of CPU. Python itself puts the folder of a
job first, and in processes of tasks the working folder. A `random.py` there would hide Python's.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from importlib.abc import MetaPathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from importlib.machinery import ModuleSpec

SAFE_PATH: Final = "PYTHONSAFEPATH"
"""With it Python does not look for modules in the working folder."""
SAFE: Final = "1"
MODULES: Final = "_SEQUITUR_MODULES"
"""The folder of a topology's own modules; behind all others on the path of tasks' processes."""
FILES: Final[dict[str, str]] = {}
"""The topology that this process has loaded: its file, by the name of its module."""
_NAMED: Final = re.compile(r"'(\w+)(?:\.\w+)*'|/(\w+)(?:/__init__)?\.py\"")


def leave_out_archives() -> None:
    """Import pyspark and py4j from where they are installed, if the archives are a part of that.

    Archives of another Spark stay: their modules fit the JVM that put them there. The folder of
    this package is left out, too: the names in it are no modules of their own.
    """
    for entry in [entry for entry in sys.path if _is_installed(Path(entry))]:
        sys.path.remove(entry)
        sys.path_importer_cache.pop(entry, None)
    ours = str(Path(__file__).parent)
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != os.path.realpath(ours)]


def add_modules(folder: str | None) -> None:
    """Let imports find modules in a folder, after all other folders."""
    if folder is not None and folder not in sys.path:
        sys.path.append(folder)


class ModulesOfFiles(MetaPathFinder):
    """Finds modules in files of their own, whatever is installed under their names.

    To be the first of `sys.meta_path`. So tasks get the bolts that the driver has loaded.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> ModuleSpec | None:
        del path, target
        file = self._files.get(fullname)
        return None if file is None else spec_from_file_location(fullname, file)


def hand_on_path() -> None:
    """Let programs that a task starts find modules as usual; call it in tasks."""
    if os.environ.get(SAFE_PATH) == SAFE:
        del os.environ[SAFE_PATH]


def hiding_module(said: str, folders: Iterable[str]) -> Path | None:
    """Return the file in one of some folders that hides a module which an error names.

    Args:
        said: The error, with its traceback.
        folders: Those that Python looks at before its own modules.
    """
    names = sorted({name for found in _NAMED.findall(said) for name in found if name})
    for folder in dict.fromkeys(folders):
        for path in _modules(Path(folder), names):
            if path.is_file() and not _is_module_of_that_name(path):
                return path
    return None


def _modules(folder: Path, names: Iterable[str]) -> Iterator[Path]:
    for name in names:
        if name in sys.stdlib_module_names or name in sys.modules:
            yield from (folder / f"{name}.py", folder / name / "__init__.py")


def _is_module_of_that_name(path: Path) -> bool:
    """Tell whether a file is Python's own module, or the one that this process has imported."""
    if path.resolve().is_relative_to(Path(sysconfig.get_path("stdlib")).resolve()):
        return True
    name = path.parent.name if path.stem == "__init__" else path.stem
    loaded = getattr(sys.modules.get(name), "__file__", None)
    return name not in sys.stdlib_module_names and loaded is not None and path.samefile(loaded)


def _is_installed(entry: Path) -> bool:
    """Whether it is `SITE/pyspark/python/lib/NAME.zip`, and `SITE` is searched and has `NAME`."""
    if entry.suffix != ".zip" or entry.parts[-4:-1] != ("pyspark", "python", "lib"):
        return False
    site = entry.parents[3]
    packages = ("pyspark", entry.name.removesuffix(".zip").partition("-")[0])
    return str(site) in sys.path and all((site / one / "__init__.py").exists() for one in packages)
