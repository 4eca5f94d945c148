"""Errors of this package.

::

    ConsumerError
    ├── EventTimeSpecError    the setting that says where the event time stands is not understood
    ├── StateFormatError      a state document is another program's, or a newer version's
    └── ConservationError     a row was lost or doubled: read is not what the outputs and held are
"""

from __future__ import annotations


class ConsumerError(Exception):
    """Base of every error this package raises on purpose."""


class EventTimeSpecError(ConsumerError, ValueError):
    """An event-time setting is not one of the forms understood."""


class StateFormatError(ConsumerError):
    """A state document was written by something else, or by a newer version."""


class ConservationError(ConsumerError):
    """The rows read are not the rows accounted for. Never expected; stops the job."""
