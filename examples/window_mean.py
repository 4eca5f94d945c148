"""Puts out with each reading the mean usage of its key over the minute that ends with it.

::

    sequitur process examples/window_mean.py --config job.toml

    >>> from sequitur import TopologyTester
    >>> tester = TopologyTester(topology)
    >>> tester.run([("web", {"usage": 0.5}, 0), ("web", {"usage": 1.0}, 59_999)])
    >>> tester.run([("web", {"usage": 0.5}, 60_001)])
    >>> tester.records("means")
    [(b'web', b'0.5'), (b'web', b'0.75'), (b'web', b'0.75')]
"""

from sequitur import TopologyBuilder
from sequitur.windows import Mean, sliding

builder = TopologyBuilder("window-mean")
builder.set_spout("readings")
minute = sliding("1 min", mean=Mean("usage"))
builder.set_bolt("minute", minute).fields_grouping("readings", "key")
builder.set_output("means", value="mean").local_grouping("minute")
builder.set_output("late", topic="late-readings").local_grouping("minute", "late")
topology = builder.build()
