"""Errors of topologies.

::

    TopologyError
    ├── TopologyBuildError      the topology makes no sense: a cycle, an unknown name, ...
    ├── EmitError               a bolt emitted what it has not declared
    ├── DoubleAckError          a bolt acked or failed a tuple for the second time
    ├── ForeignTupleError       a bolt acked, failed or anchored to a tuple that is not its own
    ├── BoltError               a bolt cannot get ready, or say what it wants kept
    └── BoltStateError          what a bolt wants kept cannot be kept
"""

from __future__ import annotations

from typing import Final

from sequitur.consumer._errors import ConsumerError


class TopologyError(ConsumerError):
    """Base of every error about a topology."""


class TopologyBuildError(TopologyError):
    """The topology makes no sense; the message names the component."""


class EmitError(TopologyError):
    """A bolt emitted to a stream, or with fields, that it has not declared."""


class DoubleAckError(TopologyError):
    """A tuple was acked or failed for the second time."""


class ForeignTupleError(TopologyError):
    """A tuple was acked, failed or anchored to by a bolt it was not delivered to."""


class BoltError(TopologyError):
    """A bolt cannot get ready, or say what it wants kept: there is no tuple to fail for it."""


class BoltStateError(TopologyError):
    """What a bolt wants kept until the next batch cannot be pickled."""


class BoltTimeoutError(BaseException):
    """Raised in a bolt's call that has overrun: no `Exception`, so that no bolt takes it for one.

    Never leaves the executor: the tuple fails, with reason `timeout`.
    """


NOT_THE_USERS: Final = (KeyboardInterrupt, BoltTimeoutError)
"""What comes out of the user's code and is not its own error. All else is, `Exception` or not: a
cancellation, `sys.exit`. It fails what the code was called for, and never ends the task unnamed."""
