"""The errors of the pipelines.

PipelineError
├── JavaError              pipelines.java: no Java, or too old a one
├── JarError               pipelines.jars
│   ├── JarFetchError      a jar of the lock could not be fetched
│   └── JarHashError       a jar is not the one the lock names
└── ReorderError           the reorder job cannot go on
    ├── ConnectorMissingError   Spark was started without its Kafka connector
    ├── TopicError              a topic is missing, or is not as the job needs it
    │   ├── UnansweredError     the brokers do not answer, for as long as patience goes
    │   └── DataLossError       rows of an input topic are gone, unread
    ├── SinkError               a step's rows could not be written
    │   ├── SinkUnansweredError for brokers that do not answer
    │   │   ├── SendUnansweredError  in a task: its next attempt goes on
    │   │   └── SendRefusedError     in a task: a topic does not take a row, as it is set now
    │   ├── FencedError         a newer life of the job has written
    │   ├── ColumnsError        a DataFrame is not as a sink needs it
    │   └── RowRefusedError     a topic does not take a row of a batch, of which nothing is out
    ├── OutputMismatchError     an output topic does not hold what the checkpoint says
    │   └── LostRowsError       it lacks rows that its brokers had acknowledged
    ├── LateRowError            a row is late, and the late policy is to fail
    ├── StepFunctionError       a function that is given steps raised
    ├── SubscriptionError       a subscription cannot be used as it is
    │   ├── SubscriptionFencedError   another process has taken it over
    │   └── SubscriptionClosedError   it was closed by this one
    ├── BoltCrashError          the process of a topology's task dies again and again
    ├── TopologyTaskError       a task of a topology cannot go on
    ├── TopologyFileError       a topology cannot be had from a file
    └── CheckpointError         a checkpoint is another job's, or does not hang together
        ├── OwnershipError         another process has it, or has taken it over
        └── WrongBatchError        it belongs to another stream, or has got elsewhere
"""


class PipelineError(Exception):
    """Base of every error this package raises on purpose."""


class JavaError(PipelineError):
    """There is no Java on this machine that Kafka and Spark can run on."""


class JarError(PipelineError):
    """The locked jars are not all there."""


class JarFetchError(JarError):
    """A jar of the lock could not be fetched."""


class JarHashError(JarError):
    """A jar's SHA-256 differs from the one in the lock; the file has been removed."""


class ReorderError(PipelineError):
    """The reorder job cannot go on."""


class ConnectorMissingError(ReorderError):
    """Spark was started without its Kafka connector."""


class TopicError(ReorderError):
    """A topic is missing, or is not as the job needs it."""


class UnansweredError(TopicError):
    """The brokers do not answer, for as long as patience goes; later they may."""


class DataLossError(TopicError):
    """Rows of an input topic are gone, and were never read."""


class SinkError(ReorderError):
    """A step's rows could not be written. The next run writes what is missing of them."""


class SinkUnansweredError(SinkError):
    """A step's rows could not be written, since brokers do not answer; later they may."""


class SendUnansweredError(SinkUnansweredError):
    """The brokers do not answer a task, for as long as its patience goes; later they may."""


class SendRefusedError(SinkUnansweredError):
    """A topic does not take a row as it is set now: the step waits until it does."""


class FencedError(SinkError):
    """A newer life of the job has written where this one was about to."""


class ColumnsError(SinkError):
    """A DataFrame has not the columns, or not the types, that a sink needs."""


class RowRefusedError(SinkError):
    """A topic does not take a row of a batch; nothing of the batch is out."""


class OutputMismatchError(ReorderError):
    """An output topic does not hold what the checkpoint says, or is not known to."""


class LostRowsError(OutputMismatchError):
    """An output topic lacks rows that its brokers had acknowledged."""


class LateRowError(ReorderError):
    """A row is late, and the late policy is to fail. Nothing of its step is out."""


class StepFunctionError(ReorderError):
    """A function that is given the steps of a job raised; the next start gives the step again."""


class SubscriptionError(ReorderError):
    """A subscription is another job's, is in use, or its cursors do not fit."""


class SubscriptionFencedError(SubscriptionError):
    """Another process has taken the subscription over: nothing that follows counts any more."""


class SubscriptionClosedError(SubscriptionError):
    """The subscription was closed: open it again."""


class BoltCrashError(ReorderError):
    """The process of a topology's task dies again and again, and no single event does it."""


class TopologyTaskError(ReorderError):
    """A task of a topology cannot go on, for a reason that is no tuple's: a bolt cannot prepare."""


class TopologyFileError(ReorderError):
    """A topology cannot be had from a file, or does not go with the job's settings."""


class CheckpointError(ReorderError):
    """A checkpoint is another job's or of a newer version, or its parts do not fit together."""


class OwnershipError(CheckpointError):
    """Another process has the checkpoint, or has taken it over. To try again at once is no use."""


class WrongBatchError(CheckpointError):
    """A sink's checkpoint belongs to another stream, or has got to another batch."""
