"""Errors of topologies.

::

    TopologyError
    ├── TopologyBuildError      the topology makes no sense: a cycle, an unknown name, ...
    ├── EmitError               a bolt emitted what it has not declared
    ├── UngroupableValueError   tuples are grouped by a value of which no equal ones are known
    ├── DoubleAckError          a bolt acked or failed a tuple for the second time
    ├── ForeignTupleError       a bolt acked, failed or anchored to a tuple that is not its own
    ├── BoltError               a bolt's prepare, restore or snapshot raised
    ├── BoltStateError          a bolt's snapshot cannot be pickled
    ├── TransactionError        a transaction failed as often as it may
    ├── TransactionOrderError   it is not the turn of a transaction to be emitted or committed
    └── TransactionMetadataError    a transaction's metadata is damaged, or has no form in JSON
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


class UngroupableValueError(TopologyError):
    """Tuples are grouped by a value of a type of which it is not known which values are equal.

    That is so for all events, so it fails none of them, and ends the job.
    """


class DoubleAckError(TopologyError):
    """A tuple was acked or failed for the second time."""


class ForeignTupleError(TopologyError):
    """A tuple was acked, failed or anchored to by a bolt it was not delivered to."""


class BoltError(TopologyError):
    """A bolt's `prepare`, `restore` or `snapshot` raised, or a grouping's `prepare`.

    There is no tuple to fail for it.
    """


class BoltStateError(TopologyError):
    """A bolt's snapshot cannot be pickled."""


class TransactionError(TopologyError):
    """A transaction failed as often as it may; the next start of the job goes on with it."""


class TransactionOrderError(TopologyError):
    """A transaction was emitted, failed or committed out of its turn; the message names it."""


class TransactionMetadataError(TopologyError):
    """A transaction's metadata is damaged, or of a newer version, or JSON has no form for it."""


class BoltTimeoutError(BaseException):
    """Raised in a bolt's call that has overrun: not an `Exception`, so that bolts do not catch it.

    Never leaves the executor: the tuple fails, with reason `timeout`.
    """


NOT_THE_USERS: Final = (KeyboardInterrupt, BoltTimeoutError)
"""Exceptions out of user code that are not its own. All others are, `Exception` or not: a
cancellation, `sys.exit`. They fail what the code was called for, and never end the task unnamed."""
