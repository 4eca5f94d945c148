"""What is public is found where users look for it."""

from __future__ import annotations

import importlib
import inspect
import pickle
import pkgutil
import re
from typing import TYPE_CHECKING, Any

import pytest

import sequitur
import sequitur.consumer
import sequitur.consumer.topology
import sequitur.consumer.topology.state
import sequitur.errors
import sequitur.producer
import sequitur.testing

if TYPE_CHECKING:
    from collections.abc import Iterator

_FACES = (
    *(sequitur, sequitur.errors, sequitur.testing),
    *(sequitur.producer, sequitur.consumer, sequitur.consumer.topology),
    sequitur.consumer.topology.state,
)
_PACKAGES = ("sequitur.producer", "sequitur.consumer", "sequitur.pipelines", "sequitur")
_NOT_FOR_USERS = frozenset(
    {"OutputCollector.__init__", "OutputCollector.hand_over", "BasicOutputCollector.__init__"}
    | {"ProcessSettings.rules", "Ticket.watch"}
)
"""What the job makes and calls, though it has no underscore."""
_SCRIPTS = frozenset({"sequitur.__main__", "sequitur.producer.__main__"})


def _modules() -> Iterator[Any]:
    for package in _PACKAGES:
        path = importlib.import_module(package).__path__
        for found in pkgutil.walk_packages(path, f"{package}."):
            is_script = found.name in _SCRIPTS or found.name.startswith("sequitur.pipelines.re")
            if not is_script:
                yield importlib.import_module(found.name)


def _own_classes() -> dict[str, type]:
    return {
        name: value
        for module in _modules()
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__.startswith("sequitur")
    }


def test_every_error_is_in_one_place() -> None:
    """A user who catches errors looks into `sequitur.errors`; none of ours is missing there."""
    errors = {
        name
        for name, value in _own_classes().items()
        if issubclass(value, BaseException) and not name.startswith("_")  # a module's own signal
    }
    # Only between parts of the job, of the producer, or of a command.
    errors -= {"StopRequestedError", "BatchFailedError", "OutdatedError", "RequestInDoubtError"}
    public = {name for name in errors if vars(sequitur.errors).get(name) is not None}
    assert errors - public == set()


_ERRORS = [vars(sequitur.errors)[name] for name in sequitur.errors.__all__]
_SIGNALS = {sequitur.errors.BoltTimeoutError, sequitur.errors.FailBatch}


@pytest.mark.parametrize("error", [one for one in _ERRORS if one not in _SIGNALS])
def test_errors_have_one_root_and_can_be_pickled(error: type[Exception]) -> None:
    """Also where a constructor takes what the message is made of: tasks send them to the driver."""
    assert issubclass(error, sequitur.errors.SequiturError)
    raised = error.__new__(error, "told")
    raised.args, raised.__dict__["topic"] = ("told",), "orders"
    copy = pickle.loads(pickle.dumps(raised))
    assert (type(copy), copy.args, copy.topic) == (error, ("told",), "orders")


@pytest.mark.parametrize("name", sequitur.__all__)
def test_types_of_public_signatures_are_public(name: str) -> None:
    """A user who annotates code finds each type that a signature names."""
    public = {name for face in _FACES for name in face.__all__}
    value = getattr(sequitur, name)
    named = {word for text in _annotations(value) for word in re.findall(r"[A-Za-z_][\w.]*", text)}
    assert {word for word in named if word in _OWN and word not in public} == set()


def _annotations(value: Any) -> Iterator[str]:
    functions = [value] if inspect.isfunction(value) else []
    if inspect.isclass(value):
        members = {
            (one.__name__, key): member
            for one in value.__mro__
            if one.__module__.startswith("sequitur")
            for key, member in vars(one).items()
        }
        for (owner, key), member in members.items():
            is_private = key.startswith("_") and key not in {"__init__", "__call__"}
            if is_private or f"{owner}.{key}" in _NOT_FOR_USERS:
                continue
            called = getattr(member, "fget", None) or getattr(member, "__func__", member)
            functions += [called] if inspect.isfunction(called) else []
    for function in functions:
        yield from map(str, function.__annotations__.values())


_OWN = {name for name in _own_classes() if not name.startswith("_")}
