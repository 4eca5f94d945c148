"""The mean CPU usage of each minute: the topology that the demo runs on its readings."""

from __future__ import annotations

from sequitur.consumer.topology import TopologyBuilder
from sequitur.windows import Count, Mean, tumbling

builder = TopologyBuilder("usage")
builder.set_spout("readings")
minute = tumbling("1 min", mean=Mean("usage"), count=Count())
builder.set_bolt("minute", minute).fields_grouping("readings", "key")
builder.set_output("means", value=None).local_grouping("minute")
builder.set_output("late").local_grouping("minute", "late")
topology = builder.build()
