"""A user's topology: loaded from its file, checked against settings and what a checkpoint has."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from typing import TYPE_CHECKING

from msgspec.structs import replace

from sequitur.base.text import named
from sequitur.consumer.reorder import ReorderMode
from sequitur.consumer.reorder.late_policy import ROUTES, Output
from sequitur.consumer.topology import Topology
from sequitur.consumer.topology.api.builder import KEY_ENTRIES
from sequitur.consumer.topology.transactional.builder import TransactionalTopology
from sequitur.errors import TopologyFileError
from sequitur.pipelines.python_path import FILES, add_modules
from sequitur.pipelines.spark_settings import is_local

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path
    from types import ModuleType

    from sequitur.consumer.reorder import ReorderSettings
    from sequitur.consumer.topology import ProcessSettings
    from sequitur.pipelines.topology.processed import Prepared, Processed


def load_topology(path: Path) -> Topology:
    """Import a file, and return the topology that it names `topology`.

    It is imported as the module of its name, so that tasks find its bolts under that name, too,
    also where a package of that name is installed. Spark's tasks need the file by
    `spark.sparkContext.addPyFile`. Modules beside it are found behind all others: none of them
    hides one of Python's own, or one that is installed.
    """
    if not path.is_file():
        raise TopologyFileError(f"{path}: there is no such file")
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise TopologyFileError(f"{path}: its name is not that of a Python module")
    module = sys.modules.get(path.stem)
    if module is None and path.stem not in sys.stdlib_module_names:
        add_modules(str(path.resolve().parent))
        module = _imported(path)
    found = getattr(module, "__file__", None)
    if found is None or not path.resolve().samefile(found):
        raise TopologyFileError(
            f"{path}: a module named {path.stem!r} exists already: give the file another name"
        )
    topology = getattr(module, "topology", None)
    if not isinstance(topology, Topology):
        raise TopologyFileError(
            f"{path} has no topology: it has to say `topology = builder.build()`"
        )
    return topology


def _imported(path: Path) -> ModuleType:
    """Import a file under its own name, wherever Python would look for that name."""
    spec = spec_from_file_location(path.stem, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[path.stem]
        raise TopologyFileError(f"{path} cannot be imported: {named(error)}") from error
    FILES[path.stem] = str(path.resolve())
    return module


def check_settings(reorder: ReorderSettings, process: ProcessSettings, topology: Topology) -> None:
    if ROUTES[reorder.late_policy].output is Output.RELEASED:
        raise TopologyFileError(
            f'reorder.late_policy = "{reorder.late_policy}": late events would reach bolts out '
            "of order. Send them to a topic"
        )
    by_field = bool(topology.keyed_by_field)
    if topology.is_keyed and (why := process.why_not_keyed(by_field=by_field)) is not None:
        raise TopologyFileError(
            f"process.{why}: topology {topology.name!r} has keyed bolts, whose events would come "
            "out of order, or could not be undone: leave the setting out"
        )
    if topology.is_keyed and reorder.mode is ReorderMode.LATEST:
        raise TopologyFileError(
            f'reorder.mode = "{reorder.mode}": topology {topology.name!r} has keyed bolts, and '
            "events come out of order in that mode: leave the setting out"
        )
    if isinstance(topology, TransactionalTopology):
        _check_transactional(process, topology)
    elif process.max_batches_pending > 1:
        raise TopologyFileError(
            f"process.max_batches_pending = {process.max_batches_pending}: topology "
            f"{topology.name!r} is not transactional, so its batches are processed one by one"
        )
    written = [*topology.topics(reorder.output_topic), *reorder.written_topics[1:]]
    written.append(process.dead_letters(reorder.output_topic))
    twice = [name for name in written if written.count(name) > 1]
    if twice:
        raise TopologyFileError(f"topic {twice[0]!r} is written to for two purposes")
    read = [name for name in written if name in reorder.input_topics]
    if read:
        raise TopologyFileError(f"topic {read[0]!r} is read, and written to by the topology")


def _check_transactional(process: ProcessSettings, topology: TransactionalTopology) -> None:
    if not topology.is_of_ordered_stream:
        raise TopologyFileError(
            f"topology {topology.name!r}: a job cannot run its spout "
            f"{type(topology.source).__name__}: only TransactionTester runs spouts of your own "
            "today. Send what it emits to a Kafka topic, and give the builder an "
            "OrderedStreamSpout()"
        )
    why = process.why_not_transactional(is_keyed=topology.is_keyed)
    if why is not None:
        setting, reason = why.split(": ", 1)
        raise TopologyFileError(
            f"process.{setting}: topology {topology.name!r} is transactional: {reason}"
        )


def check_stores(process: ProcessSettings, topology: Topology, master: str) -> None:
    """Check that all tasks reach the databases of a topology's states."""
    if is_local(master) or process.sqlite_on_one_host:
        return
    if isinstance(topology, TransactionalTopology):
        states = [state for several in topology.states.values() for state in several.values()]
        for state in states:
            if state.store.is_of_one_host:
                raise TopologyFileError(
                    f"state {state.name!r} of topology {topology.name!r} is in "
                    f"{state.store.title}, a file of one host, and Spark's master is {master}: "
                    "take PostgreSQL, or, where the driver and all executors run on one host, say "
                    "process.sqlite_on_one_host = true"
                )


def check_kind(root: str, found: Processed, topology: Topology) -> None:
    """Check that a topology with committed transactions is still a transactional one."""
    if found.transaction_id and not topology.is_transactional:
        raise TopologyFileError(
            f"{root}: topology {topology.name!r} has committed {found.transaction_id} "
            "transactions, and is not transactional now: give the job a checkpoint of its own, or "
            "build the topology with a TransactionalTopologyBuilder"
        )


def is_prepared(root: str, step: int, topology: Topology) -> TopologyFileError:
    """Return the error about a prepared transaction that the topology cannot commit."""
    return TopologyFileError(
        f"{root}: step {step} is a transaction that is prepared and not committed everywhere, and "
        f"topology {topology.name!r} is not transactional now: build it with a "
        "TransactionalTopologyBuilder until the step is done, or give the job a checkpoint of its "
        "own"
    )


def check_prepared(
    root: str, prepared: Prepared, topology: TransactionalTopology, tasks: Mapping[str, int]
) -> None:
    """Check that the topology still has the commit phase for which a step is prepared."""
    had: dict[str, object] = {_tasks_of(one): count for one, count in prepared.tasks.items()}
    has: dict[str, object] = {_tasks_of(one): tasks.get(one, 0) for one in prepared.tasks}
    had |= prepared.signature
    has |= topology.commit_signature
    for what in sorted({*had, *has}):
        if had.get(what) != has.get(what):
            raise TopologyFileError(
                f"{root}: step {prepared.processed.step} is prepared, and may be in databases in "
                f"part, for a topology {_said(what, had)}. Now it is one {_said(what, has)}. "
                "Run the job with the topology as it was until the step is done "
                "(--available-now), and change it then"
            )


def _tasks_of(component: str) -> str:
    return f"the tasks of {component!r}"


def _said(what: str, where: Mapping[str, object]) -> str:
    found = where.get(what)
    if found is None:
        return f"without {what}"
    return f"with {what}: {', '.join(found) if isinstance(found, list) else found}"


def check_outputs(root: str, found: Processed, outputs: Collection[str]) -> None:
    """Check that a step that is not out yet writes only to topics that the topology still has."""
    written = (topic for topic, files in found.records.items() if files)
    gone = [topic for topic in written if topic not in outputs]
    if gone:
        raise TopologyFileError(
            f"{root}: step {found.step} has records for topic {gone[0]!r}, but no output writes "
            "to it now: give the topology that output back until the step is done"
        )


def check_dropped(root: str, names: Collection[str], topology: Topology) -> None:
    """Check that only state is dropped that no bolt has: a restart would drop it again."""
    there = [one for one in names if one in topology.key_stores]
    if there:
        raise TopologyFileError(
            f"{root}: --drop-state {there[0]}: the topology has this keyed bolt. To begin without "
            "its state, give the bolt another uid, and drop the state then"
        )


def without_keys(found: Processed, names: Collection[str]) -> Processed:
    """Return what became of a step's events, without what keyed bolts kept that are gone."""
    gone = {name for one in names for name in (one, one + KEY_ENTRIES)}
    if not any(one.component in gone for one in found.keys):
        return found
    keys = tuple(one for one in found.keys if one.component not in gone)
    tasks = {name: count for name, count in found.tasks.items() if name not in gone}
    return replace(found, keys=keys, tasks=tasks)


def check_keys(root: str, found: Processed, topology: Topology) -> None:
    """Check that keyed bolts are still keyed by the events' key, or still by another field.

    Also check that no timers are set where none are called.
    """
    stores, by_field = topology.key_stores, topology.stores_by_field
    for one in found.keys:
        if one.component in stores and one.timers and topology.is_transactional:
            raise TopologyFileError(
                f"{root} keeps timers of keyed bolt {stores[one.component]!r}, and topology "
                f"{topology.name!r} is transactional now: it calls none. Run the job with the "
                "topology as it was until all are called, or give the bolt another uid, and say "
                f"--drop-state {one.component}"
            )
        if one.component in stores and one.by_field is not (one.component in by_field):
            was, now = ("another field", "the events' key")[:: 1 if one.by_field else -1]
            raise TopologyFileError(
                f"{root} keeps state of keyed bolt {stores[one.component]!r} by {was}, and it is "
                f"keyed by {now} now: give it another name, or the grouping back"
            )


def check_states(
    root: str,
    found: Processed,
    tasks: Mapping[str, int],
    tasks_of_keys: Mapping[str, int],
    may_change: Collection[str] = (),
) -> None:
    """Check that the topology still has the bolts that keep state, with as many tasks.

    Args:
        root: The checkpoint, for errors.
        found: What a step has left.
        tasks: How many tasks each bolt has.
        tasks_of_keys: The same by the names under which keyed bolts keep their keys.
        may_change: Those among them that are keyed by a field. They may have other numbers.
    """
    keyed = {one.component for one in found.keys}
    for component, had in found.tasks.items():
        # A keyed bolt with another uid may have the name under which another one has kept its keys.
        has = (tasks_of_keys if component in keyed else tasks).get(component)
        if has is None and component in keyed:
            whose, is_entries, _ = component.partition(KEY_ENTRIES)
            kept = "a map or list" if is_entries else "the state"
            raise TopologyFileError(
                f"{root} keeps {kept} of a keyed bolt {whose!r}, which the topology has not. If "
                f"the bolt was renamed, give it its former name: set_bolt(..., uid={whose!r}). If "
                f"it is gone, drop what is kept of it: --drop-state {component}"
            )
        if has is None:
            raise TopologyFileError(
                f"{root} keeps state of a bolt {component!r}, which the "
                "topology has not: give the job a checkpoint of its own, or the bolt back"
            )
        if has != had and component not in may_change:
            raise TopologyFileError(
                f"{root} keeps state of {had} tasks of bolt {component!r}, which has "
                f"{has} now: tuples would go to other tasks than their state. "
                "Keep its parallelism"
            )
