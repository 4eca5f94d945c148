"""Joins orders with their payments; what is joined depends on both, and is written once.

The events are of two kinds, both with the order's number as their key::

    {"kind": "order", "number": 7, "item": "lamp"}
    {"kind": "payment", "number": 7, "amount": 35}

The joined tuple is anchored to both: if anything fails behind the join, both are tried again, and
together. An order whose payment is not there yet fails as well, and holds the later events of its
key, so its payment will wait for it. If there is none until the last attempt, the order ends in the
dead-letter topic, with the reason.

Run it, with `event_time` in the job.toml as your events have it::

    sequitur process examples/join.py --config job.toml

or try it without Kafka and without Spark::

    >>> from sequitur import TopologyTester
    >>> tester = TopologyTester(topology)
    >>> order = {"kind": "order", "number": 7, "item": "lamp"}
    >>> tester.run([("7", order), ("7", {"kind": "payment", "number": 7, "amount": 35})])
    >>> tester.records("paid")
    [(b'7', b'{"item":"lamp","amount":35}')]
    >>> print(tester.trees[0].as_text())  # doctest: +ELLIPSIS
    events/0@0 key=b'7', attempt 1: acked
    ...
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sequitur import BatchBolt, TopologyBuilder, bolt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur import Event, OutputCollector, TopologyContext, Tuple


@bolt(fields=("number", "kind", "content"))
def parse(event: Event) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Read an order or a payment."""
    content = json.loads(event.value or b"")
    yield content["number"], content["kind"], content


class Join(BatchBolt):
    """Holds what its batch gives it, and joins it at the batch's end."""

    fields = ("number", "item", "amount")

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        """Hold nothing yet."""
        super().prepare(context, collector)
        self.held: dict[int, dict[str, Tuple]] = {}

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        """Hold an order or a payment, which is acked later."""
        kinds = self.held.setdefault(tuple["number"], {})
        if tuple["kind"] in kinds:
            self.collector.fail(tuple, f"there is another {tuple['kind']} of this number")
        else:
            kinds[tuple["kind"]] = tuple

    def finish_batch(self) -> None:
        """Join what has both sides; what has one will be tried again."""
        for number, kinds in self.held.items():
            order, payment = kinds.get("order"), kinds.get("payment")
            if order is None or payment is None:
                for one in kinds.values():
                    self.collector.fail(one, "the other side is not there")
                continue
            values = (number, order["content"]["item"], payment["content"]["amount"])
            self.collector.emit(values, anchors=(order, payment))
            self.collector.ack(order)
            self.collector.ack(payment)
        self.held.clear()


builder = TopologyBuilder("join")
builder.set_spout("events")
builder.set_bolt("parse", parse).local_grouping("events")
builder.set_bolt("join", Join(), parallelism=2).fields_grouping("parse", "number")
builder.set_output("paid", topic="paid-orders", key="number", value=None).local_grouping("join")

topology = builder.build()
