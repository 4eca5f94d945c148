"""Copies of a batch bolt, taken while it works: it goes on from one without a tuple that failed."""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any, Final

from sequitur.consumer.topology.engine.tracked import TrackedTuple
from sequitur.errors import NOT_THE_USERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.consumer.topology.api.bolt import BaseBolt

_EACH: Final = 8
_BYTES_EACH: Final = 1 << 14
"""So many are pickled for a tuple at most: what grows with a batch is not copied at each step."""
_MOST: Final = 1 << 12
_SMALL: Final = 1 << 12
_SMALL_AGAIN: Final = 1 << 16


class BoltCopies:
    """The newest copy of a bolt, and the tuples that it was given since.

    A copy is taken after 8 tuples, after 16 more, and so on up to every 4,096; once one has failed,
    every 8, or as many as a copy takes 16 KiB, and where the bolt has gone on. A call that emits is
    not repeated, as other tasks have what it has emitted: it is followed by a copy, if one takes up
    to 4 KiB or a tuple has failed before, and else there is none any more.
    """

    def __init__(self, bolt: BaseBolt, shared: Sequence[Any], *, is_again: bool = False) -> None:
        self.since: list[TrackedTuple] = []
        self._each = _EACH
        self._small = _SMALL_AGAIN if is_again else _SMALL
        self._has_gone_back = False
        self._shared = {id(one): one for one in shared}
        self._tuples: dict[int, TrackedTuple] = {}
        self._copy: bytes | None = None
        # Its own way of being pickled is for one that is not prepared.
        own = ("__getstate__", "__reduce__", "__reduce_ex__")
        if all(getattr(type(bolt), name) is getattr(object, name) for name in own):
            self.take(bolt)

    @property
    def can_go_back(self) -> bool:
        """Whether there is a copy."""
        return self._copy is not None

    def drop(self) -> None:
        """Have no copy any more."""
        self._copy = None
        self.since.clear()

    def add(self, bolt: BaseBolt, given: TrackedTuple) -> None:
        """Note that the bolt was given a tuple."""
        if self._copy is None:
            return
        self.since.append(given)
        if len(self.since) >= self._each:
            if not self._has_gone_back:
                self._each = min(2 * self._each, _MOST)
            self.take(bolt)

    def add_emitting(self, bolt: BaseBolt) -> None:
        """Note that the bolt was given a tuple, and emitted something for it."""
        if self._copy is None:
            return
        if self._has_gone_back or len(self._copy) <= self._small:
            self.take(bolt)
        else:
            self.drop()

    def back(self) -> tuple[BaseBolt, list[TrackedTuple]]:
        """Return the bolt as it was when it was copied, and the tuples that it was given since."""
        assert self._copy is not None
        self._has_gone_back = True
        self._come_closer()
        since, self.since = self.since, []
        unpickler = pickle.Unpickler(io.BytesIO(self._copy))  # noqa: S301 - our own
        unpickler.persistent_load = self._known  # type: ignore[method-assign]
        bolt: BaseBolt = unpickler.load()
        return bolt, since

    def take(self, bolt: BaseBolt) -> None:
        """Copy the bolt as it is."""
        kept: dict[int, TrackedTuple] = {}

        def number(one: Any) -> int | None:
            if isinstance(one, TrackedTuple):
                kept[id(one)] = one
                return id(one)
            return id(one) if id(one) in self._shared else None

        file = io.BytesIO()
        pickler = pickle.Pickler(file, protocol=5)
        pickler.persistent_id = number  # type: ignore[method-assign]
        try:
            pickler.dump(bolt)
        except NOT_THE_USERS:
            raise
        except BaseException:  # noqa: BLE001 - it cannot be copied
            self.drop()
            return
        self._copy, self._tuples = file.getvalue(), kept
        if self._has_gone_back:
            self._come_closer()
        self.since.clear()

    def _come_closer(self) -> None:
        assert self._copy is not None
        self._each = max(_EACH, len(self._copy) // _BYTES_EACH)

    def _known(self, number: int) -> Any:
        return self._tuples.get(number) or self._shared[number]
