"""The errors of the command line, the broker and the demo.

SequiturError
├── BrokerStartError        the embedded broker did not come up, or does not run
│   └── PortInUseError      another program has its port
├── UnknownTopicError       a topic that does not exist
├── UnknownRecordError      a place in a topic without a record
├── NotADeadLetterError     a record that the process job did not write
└── DemoError               the demo found something lost, duplicated or out of order
"""


class SequiturError(Exception):
    """Base of every error this package raises on purpose."""


class BrokerStartError(SequiturError):
    """The embedded broker did not come up, or does not run."""


class PortInUseError(BrokerStartError):
    """Another program has the embedded broker's port."""


class UnknownTopicError(SequiturError):
    """A topic was named that the brokers do not know."""


class UnknownRecordError(SequiturError):
    """A place in a topic was named where there is no record, or none any more."""


class NotADeadLetterError(SequiturError):
    """A record of the dead-letter topic that the process job did not write."""


class DemoError(SequiturError):
    """A part of the demo ended with an error, or its result does not hold."""
