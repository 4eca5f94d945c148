"""What is public is found where users look for it."""

from __future__ import annotations

import importlib
import inspect
import pickle
import pkgutil
import pydoc
import re
from functools import cached_property
from types import FunctionType
from typing import TYPE_CHECKING, Any

import pytest

import sequitur.consumer
import sequitur.errors
from tests.house.public_names import FACES, NOT_FOR_USERS

if TYPE_CHECKING:
    from collections.abc import Iterator

_FACES = tuple(map(importlib.import_module, FACES))
_NAMES = sorted({(face.__name__, name) for face in _FACES for name in face.__all__})
_PACKAGES = ("sequitur.producer", "sequitur.consumer", "sequitur.pipelines", "sequitur")
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


@pytest.mark.parametrize("face", _FACES, ids=FACES)
def test_help_shows_each_public_name(face: Any) -> None:
    """It evaluates annotations: their names have to be there, and not for a type checker alone."""
    assert face.__name__ in pydoc.render_doc(face)
    found = [getattr(face, name) for name in face.__all__]
    classes = [one for one in found if inspect.isclass(one)]
    assert classes
    for one in classes:
        assert one.__name__ in pydoc.render_doc(one)


def test_every_error_is_in_one_place() -> None:
    """A user who catches errors looks into `sequitur.errors`; none of ours is missing there."""
    errors = {
        name
        for name, value in _own_classes().items()
        if issubclass(value, BaseException) and not name.startswith("_")  # a module's own signal
    }
    # Only between parts of the job, of the producer, or of a command.
    errors -= {"StopRequestedError", "BatchFailedError", "OutdatedError", "RequestInDoubtError"}
    errors -= {"ProcessDiedError"}
    public = {name for name in errors if vars(sequitur.errors).get(name) is not None}
    assert errors - public == set()


_ERRORS = [
    found
    for name, found in sorted(vars(sequitur.errors).items())
    if inspect.isclass(found) and issubclass(found, BaseException) and not name.startswith("_")
]
_SIGNALS = {sequitur.errors.BoltTimeoutError, sequitur.errors.FailBatch}


@pytest.mark.parametrize("error", [one for one in _ERRORS if one not in _SIGNALS])
def test_errors_have_one_root_and_can_be_pickled(error: type[Exception]) -> None:
    """Also where a constructor takes what the message is made of: tasks send them to the driver."""
    assert issubclass(error, sequitur.errors.SequiturError)
    raised = error.__new__(error, "told")
    raised.args, raised.__dict__["topic"] = ("told",), "orders"
    copy = pickle.loads(pickle.dumps(raised))
    assert (type(copy), copy.args, copy.topic) == (error, ("told",), "orders")


@pytest.mark.parametrize(("face", "name"), _NAMES)
def test_types_of_public_signatures_are_public(face: str, name: str) -> None:
    """A user who annotates code finds each type that a signature names."""
    public = {name for face in _FACES for name in face.__all__}
    value = getattr(importlib.import_module(face), name)
    named = {word for text in _annotations(value) for word in re.findall(r"[A-Za-z_][\w.]*", text)}
    assert {word for word in named if word in _OWN and word not in public} == set()


@pytest.mark.parametrize(("face", "name"), _NAMES)
def test_public_names_have_docstrings(face: str, name: str) -> None:
    """The reference leaves out a member without one."""
    value = getattr(importlib.import_module(face), name)
    documented = [(name, value)] if inspect.isclass(value) or inspect.isfunction(value) else []
    for owner in value.__mro__ if inspect.isclass(value) else ():
        if owner.__module__.startswith("sequitur"):
            documented += [
                (f"{owner.__name__}.{key}", getattr(member, "__func__", member))
                for key, member in vars(owner).items()
                if not key.startswith("_")
            ]
    assert [
        called
        for called, one in documented
        if isinstance(one, type | property | cached_property | FunctionType)
        and not one.__doc__
        and called not in NOT_FOR_USERS
    ] == []


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
            is_ours = issubclass(value, BaseException) or f"{owner}.{key}" in NOT_FOR_USERS
            if is_private or is_ours:  # users catch errors, and make none
                continue
            called = getattr(member, "fget", None) or getattr(member, "__func__", member)
            functions += [called] if inspect.isfunction(called) else []
    for function in functions:
        yield from map(str, function.__annotations__.values())


_OWN = {name for name in _own_classes() if not name.startswith("_")}


def test_what_the_pages_leave_out_is_there() -> None:
    """An entry that outlives its method would hide a later one of that name."""
    public = [getattr(face, name) for face in _FACES for name in face.__all__]
    owners = {base for one in public if inspect.isclass(one) for base in one.__mro__}
    there = {
        f"{owner.__name__}.{member}"
        for owner in owners
        for member in (*vars(owner), *vars(owner).get("__annotations__", ()))
    }
    assert there >= NOT_FOR_USERS
