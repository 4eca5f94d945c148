"""What an emitted tuple becomes: tuples of tasks here, tuples for other tasks, records of Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from consumer.topology._errors import EmitError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from consumer.topology._groupings import Chooser
    from consumer.topology._topology import KafkaOutput
    from consumer.topology._tuple import Root, Stream


class OutputRecord(NamedTuple):
    """A record that an output bolt wrote.

    Attributes:
        root: The event it came from; of several, the last in order.
        key: Its key.
        value: Its value.
        headers: Its headers.
    """

    root: Root
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class Sent(NamedTuple):
    """A tuple for a task that runs elsewhere.

    Attributes:
        values: Its values.
        stream: Component and name of its stream.
        trees: The trees it belongs to, and its edge in each.
        path: The components it came through.
    """

    values: Any
    stream: tuple[str, str]
    trees: tuple[tuple[Root, int], ...]
    path: tuple[str, ...]


class Here(NamedTuple):
    """A reader whose tasks all run here.

    Attributes:
        runners: What runs each task.
        choose: Chooses among them.
    """

    runners: Sequence[Any]
    choose: Chooser


class Elsewhere(NamedTuple):
    """A reader whose tasks run elsewhere.

    Attributes:
        send: Takes the number of a task, and a tuple for it.
        choose: Chooses among the tasks.
    """

    send: Callable[[int, Sent], None]
    choose: Chooser


class Output(NamedTuple):
    """A reader that writes to Kafka.

    Attributes:
        component: Its name.
        encode: Makes key, value and headers of a tuple's values.
        write: Takes the trees that a record belongs to, and the record.
        write_one: Takes the one tree that a record belongs to, and the record.
    """

    component: str
    encode: Callable[[Any], tuple[bytes | None, bytes | None, Any]]
    write: Callable[[Sequence[Root], tuple[bytes | None, bytes | None, Any]], None]
    write_one: Callable[[Root, tuple[bytes | None, bytes | None, Any]], None]


def checked_values(component: str, stream: Stream, values: Any, context: object) -> tuple[Any, ...]:
    """Values as a tuple in the order of a stream's fields.

    Args:
        component: Who emits them.
        stream: The stream.
        values: A sequence in the order of the fields, a mapping by field, or of a single field the
            value itself.
        context: The tuple that is being processed, for the error.

    Raises:
        EmitError: They do not fit.
    """
    fields = stream.fields
    if isinstance(values, Mapping):
        missing = [name for name in fields if name not in values]
        unknown = [name for name in values if name not in stream.index]
        if missing or unknown:
            wrong = f"unknown field {unknown[0]!r}" if unknown else f"no field {missing[0]!r}"
            raise EmitError(
                f"bolt {component!r} emitted to {stream.title!r} {_of(context)}: {wrong}; "
                f"its fields are: {', '.join(fields) or 'none'}"
            )
        return tuple(values[name] for name in fields)
    if isinstance(values, tuple | list):
        if len(values) != len(fields):
            raise EmitError(
                f"bolt {component!r} emitted {len(values)} values to {stream.title!r} "
                f"{_of(context)}; its fields are: {', '.join(fields) or 'none'}"
            )
        return tuple(values)
    if len(fields) == 1:
        return (values,)
    raise EmitError(
        f"bolt {component!r} emitted {values!r} to {stream.title!r} {_of(context)}, "
        f"which has {len(fields)} fields: {', '.join(fields) or 'none'}"
    )


def _of(context: object) -> str:
    return f"for {context!r}" if context is not None else "at the end of a batch"


def encoder(
    component: str, output: KafkaOutput, stream: Stream
) -> Callable[[Any], tuple[bytes | None, bytes | None, Any]]:
    """What makes key, value and headers of a record out of a tuple's values.

    Args:
        component: The output bolt.
        output: What it writes.
        stream: The stream it reads.
    """
    key_at = None if output.key is None else stream.index[output.key]
    value_at = None if output.value is None else stream.index[output.value]
    headers_at = None if output.headers is None else stream.index[output.headers]
    rest = [(name, at) for name, at in stream.index.items() if at not in {key_at, headers_at}]

    def encode(values: Any) -> tuple[bytes | None, bytes | None, Any]:
        key = None if key_at is None else values[key_at]
        if key is not None and key.__class__ is not bytes:
            key = _encoded(component, "key", key)
        value = {name: values[at] for name, at in rest} if value_at is None else values[value_at]
        if value is not None and value.__class__ is not bytes:
            value = _encoded(component, "value", value)
        if headers_at is None:
            return key, value, ()
        return key, value, _headers(component, values[headers_at])

    return encode


def _encoded(component: str, what: str, value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    try:
        return msgspec.json.encode(value)
    except (TypeError, msgspec.MsgspecError) as error:
        raise EmitError(
            f"output {component!r}: {what} {value!r} is neither bytes nor text, "
            f"and JSON has no form for it: {error}"
        ) from error


def _headers(component: str, headers: Any) -> list[tuple[str, bytes | None]]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    made = []
    for pair in pairs:
        name, value = pair
        if not isinstance(name, str):
            raise EmitError(f"output {component!r}: header {name!r}: its name is no text")
        made.append((name, None if value is None else _encoded(component, "header", value)))
    return made
