"""Errors of this package.

::

    ConsumerError
    ├── EventTimeSpecError    the setting that says where the event time stands is not understood
    ├── StateFormatError      a state document is another program's, or a newer version's
    ├── ConservationError     a row was lost or doubled: read is not what the outputs and held are
    ├── CursorError
    │   ├── AckBeyondEndError     an ack of an offset that the partition does not have yet
    │   ├── MarkDeleteBackError   a cumulative ack would move the mark-delete position back
    │   ├── CumulativeAckError    a cumulative ack where messages are handed out in any order
    │   ├── CursorDamagedError    a written cursor was cut or changed, or never was one
    │   ├── CursorVersionError    a written cursor has a format that this version does not know
    │   ├── ForeignCursorError    a written cursor is that of another subscription or partition
    │   └── CursorChunksError     a chunk is missing, doubled, or of another generation
    ├── PositionFormatError   a position, or a time, is not one of the forms understood
    ├── PositionRangeError    a position that the topics of a subscription do not have
    └── RegistryError
        ├── PolicyError                 a policy that Pulsar refuses, or one that is not understood
        ├── SubscriptionNameError       a name that Kafka does not take as that of a group member
        ├── SubscriptionExistsError     a subscription of that name is there
        ├── UnknownSubscriptionError    no subscription of that name is there
        ├── SubscriptionChangedError    it was reset or created anew meanwhile
        └── SubscriptionConnectedError  it has a consumer, and is not taken away from it

The last four of `CursorError` are `StateFormatError`, too.
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


class CursorError(ConsumerError):
    """Base of every error about a subscription's cursor."""


class AckBeyondEndError(CursorError, ValueError):
    """An ack, or a read position, lies beyond the end of the partition; nothing was changed."""


class MarkDeleteBackError(CursorError, ValueError):
    """A cumulative ack lies before the mark-delete position; nothing was changed."""


class CumulativeAckError(CursorError, ValueError):
    """Subscriptions of the types Shared and Key_Shared take individual acks only; so in Pulsar."""


class CursorDamagedError(CursorError, StateFormatError):
    """The bytes or the text were cut or changed since they were written, or are no cursor."""


class CursorVersionError(CursorError, StateFormatError):
    """The cursor was written in a format that this version does not know."""


class ForeignCursorError(CursorError, StateFormatError):
    """The cursor is whole, and that of another subscription, topic or partition."""


class CursorChunksError(CursorError, StateFormatError):
    """Chunks are missing, there twice, or of another generation than the pointer names."""


class PositionFormatError(ConsumerError, ValueError):
    """A position, or a time to reset to, is not one of the forms understood."""


class PositionRangeError(ConsumerError, ValueError):
    """A position is of a topic, a partition or an offset that is not there; nothing was changed."""


class RegistryError(ConsumerError):
    """Base of every error about the registry of subscriptions and its policies."""


class PolicyError(RegistryError, ValueError):
    """A policy is not one that Pulsar takes, or its text is not understood."""


class SubscriptionNameError(RegistryError, ValueError):
    """The name cannot be that of a consumer group and of its member."""


class SubscriptionExistsError(RegistryError):
    """A subscription of that name is there already."""


class UnknownSubscriptionError(RegistryError):
    """There is no subscription of that name."""


class SubscriptionChangedError(RegistryError):
    """The subscription was reset or created anew since the caller read it; nothing was changed."""


class SubscriptionConnectedError(RegistryError):
    """The subscription has a consumer, and was not taken away from it."""
