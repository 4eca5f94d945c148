"""What a call of a bolt gave back: one rule for functions and for all bolts, async ones included.

Emitted is what a generator, an async generator or another iterator yields, and each item of a list;
a coroutine is awaited first. Anything else was meant to be emitted, and cannot be: a string or a
tuple is one value as well as several, so which of the two it was is not guessed.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final

from sequitur.consumer.topology.api.collector import TaskId
from sequitur.errors import EmitError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

_USUAL: Final = frozenset({GeneratorType, list})


def is_awaited(returned: Any) -> bool:
    """Whether it takes an event loop to know what was given back."""
    return returned.__class__ not in _USUAL and (
        inspect.isawaitable(returned) or inspect.isasyncgen(returned)
    )


def values_of(component: str, returned: Any) -> Iterable[Any]:
    """Return what is emitted of something other than None that needs no event loop."""
    if isinstance(returned, Iterator):
        return returned
    if isinstance(returned, list):
        return () if _is_of_emit(returned) else returned
    raise EmitError(
        f"bolt {component!r} returned {returned!r:.200}: yield what is to be emitted, or return a "
        "list of it"
    )


async def awaited_values(component: str, returned: Any) -> AsyncIterator[Any]:
    """Yield what is emitted of a coroutine or an async generator."""
    while inspect.isawaitable(returned):
        returned = await returned
    if inspect.isasyncgen(returned):
        async for values in returned:
            yield values
    elif returned is not None:
        for values in values_of(component, returned):
            yield values


def _is_of_emit(returned: list[Any]) -> bool:
    """Whether it is what `emit` or `emit_many` returned: these values are out already."""
    return all(
        isinstance(one, TaskId) or (isinstance(one, list) and _is_of_emit(one)) for one in returned
    )
