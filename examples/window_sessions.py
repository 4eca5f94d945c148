"""Counts the clicks of each user's sessions, which end when the user is silent for 30 minutes.

::

    sequitur process examples/window_sessions.py --config job.toml

    >>> from sequitur import TopologyTester
    >>> tester = TopologyTester(topology)
    >>> tester.run([("ann", "home", 0), ("ann", "cart", 1_799_999), ("ann", "home", 3_600_000)])
    >>> tester.records("sessions")
    [(b'ann', b'{"begin_ms":0,"end_ms":3599999,"clicks":2}')]
"""

from sequitur import TopologyBuilder
from sequitur.windows import Count, session

builder = TopologyBuilder("window-sessions")
builder.set_spout("clicks")
sessions = session("30 min", clicks=Count())
builder.set_bolt("visits", sessions).fields_grouping("clicks", "key")
builder.set_output("sessions", value=None).local_grouping("visits")
builder.set_output("late", topic="late-clicks").local_grouping("visits", "late")
topology = builder.build()
