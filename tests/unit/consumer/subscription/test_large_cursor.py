"""A million holes over a hundred million offsets: all are kept, and in how much memory."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

import numpy as np
import pytest

from sequitur.consumer.subscription.codec import decode_cursor, encode_cursor
from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity
from tests.support.tree import ROOT

SPAN: Final = 100_000_000
HOLES: Final = 1_000_000
_MEBIBYTE: Final = 1 << 20

# Each ack is one of its own, in random order, as those of a named user are. The process is a new
# one, so that memory that was free before is not taken for the cursor's.
_PROGRAM: Final = """
import gc, json, sys
import numpy as np
import psutil
from sequitur.consumer.subscription.codec import decode_cursor, encode_cursor
from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity

span, holes = int(sys.argv[1]), int(sys.argv[2])
identity = CursorIdentity("billing", "orders", 3)
random = np.random.default_rng(1)
open_offsets = np.sort(random.choice(span - 1, holes, replace=False))
edges = np.concatenate([[-1], open_offsets, [span]])
ranges = np.column_stack([edges[:-1] + 1, edges[1:]])
ranges = ranges[ranges[:, 0] < ranges[:, 1]]
order = random.permutation(len(ranges))
cursor = Cursor(identity)
gc.collect()
before = psutil.Process().memory_info().rss
for begin in range(0, len(order), 10_000):
    for first, stop in ranges[order[begin : begin + 10_000]].tolist():
        cursor.ack_range(first, stop, end=span)
gc.collect()
held = psutil.Process().memory_info().rss - before
written = encode_cursor(cursor)
read = decode_cursor(written, identity).cursor
left = [o for a, b in read.unacked_ranges(0, span) for o in range(a, b)]
found = {
    "held": held, "ranges": cursor.acked_range_count, "expected_ranges": len(ranges),
    "first_hole": int(open_offsets[0]), "mark_delete": cursor.mark_delete,
    "backlog": cursor.backlog(span), "consumed": cursor.counts.consumed,
    "bytes": len(written), "holes_are_those": left == open_offsets.tolist(),
}
filling = random.permutation(open_offsets)
for begin in range(0, holes, 10_000):
    for offset in filling[begin : begin + 10_000].tolist():
        read.ack(offset, end=span)
found["last_mark_delete"], found["last_backlog"] = read.mark_delete, read.backlog(span)
found["last_ranges"], found["last_consumed"] = read.acked_range_count, read.counts.consumed
print(json.dumps(found))
"""


@pytest.mark.test_all
@pytest.mark.slow
def test_a_million_holes_fit_into_32_mebibytes() -> None:
    """None is forgotten, before and after the cursor is written; filled, they take it to its end.

    Pulsar forgets all but 10,000 ranges when it stores a cursor.
    """
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(SPAN), str(HOLES)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, Any] = json.loads(run.stdout)
    assert found["held"] <= 32 * _MEBIBYTE
    assert found["holes_are_those"]
    assert found["mark_delete"] == found["first_hole"] - 1
    assert found["expected_ranges"] - 1 <= found["ranges"] <= found["expected_ranges"]
    assert (found["backlog"], found["consumed"]) == (HOLES, SPAN - HOLES)
    assert found["bytes"] < 2 * HOLES
    assert (found["last_mark_delete"], found["last_backlog"]) == (SPAN - 1, 0)
    assert (found["last_ranges"], found["last_consumed"]) == (0, SPAN)


@pytest.mark.parametrize("offset", [10_001, 30_000_001, 99_999_998])
def test_no_limit_of_pulsar_holds_here(offset: int) -> None:
    """Beyond 10,000 ranges and 30 million entries an ack is kept, as any other."""
    identity = CursorIdentity("billing", "orders", 3)
    cursor = Cursor(identity)
    cursor.ack_offsets(np.arange(1, 40_000, 2), end=SPAN)
    cursor.ack_range(40_002, SPAN - 3, end=SPAN)
    again = not cursor.is_acked(offset)
    assert cursor.ack(offset, end=SPAN) == again
    read = decode_cursor(encode_cursor(cursor), identity).cursor
    assert read.is_acked(offset)
    assert read.acked_range_count == cursor.acked_range_count > 20_000
    assert read.backlog(SPAN) == cursor.backlog(SPAN)
