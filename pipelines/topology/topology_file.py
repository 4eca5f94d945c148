"""Loads a user's topology from a Python file."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from sequitur.consumer.topology import Topology
from sequitur.pipelines._errors import TopologyFileError

if TYPE_CHECKING:
    from pathlib import Path


def load_topology(path: Path) -> Topology:
    """Import a file, and return the topology that it names `topology`.

    It is imported as the module of its name, so that tasks find its bolts under that name, too:
    they need the file by `spark.sparkContext.addPyFile`.

    Raises:
        TopologyFileError: The file is missing, cannot be imported, or defines no topology.
    """
    if not path.is_file():
        raise TopologyFileError(f"{path}: there is no such file")
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise TopologyFileError(f"{path}: its name is not that of a Python module")
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        module = importlib.import_module(path.stem)
    except Exception as error:
        raise TopologyFileError(
            f"{path} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    finally:
        sys.path.remove(folder)
    found = getattr(module, "__file__", None)
    if found is None or not path.resolve().samefile(found):
        raise TopologyFileError(
            f"{path}: a module named {path.stem!r} is there already: give the file another name"
        )
    topology = getattr(module, "topology", None)
    if not isinstance(topology, Topology):
        raise TopologyFileError(
            f"{path} has no topology: it has to say `topology = builder.build()`"
        )
    return topology
