"""Items divided into portions of a bounded size."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")


def portions(
    items: Iterable[T],
    size_of: Callable[[T], int],
    most: int,
    *,
    most_items: int | None = None,
    is_beside: Callable[[T, T], bool] | None = None,
) -> Iterator[list[T]]:
    """Divide items, in their order, into lists of at most `most` together.

    A larger item is a list by itself.

    Args:
        items: What is divided.
        size_of: How much an item counts.
        most: How much a list counts, at most.
        most_items: How many items a list has, at most.
        is_beside: Whether an item may be in the list of the one before it.
    """
    some: list[T] = []
    size = 0
    for item in items:
        more = size_of(item)
        if some and (
            size + more > most
            or len(some) == most_items
            or (is_beside is not None and not is_beside(some[-1], item))
        ):
            yield some
            some, size = [], 0
        some.append(item)
        size += more
    if some:
        yield some
