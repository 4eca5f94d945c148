"""What became of a step's events, as earlier versions wrote it and as this one does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sequitur.errors import CheckpointError
from sequitur.pipelines.topology.processed import Processed, ProcessTotals
from tests.support.golden import golden_document

_ROOT = Path("/checkpoint")


def test_what_fb84216_wrote_is_gone_on_with() -> None:
    """It kept no tuple that a bolt had made by itself: none has been made."""
    document = golden_document("processed.json")
    found = Processed.from_document(document, _ROOT)
    assert document["format"] == 4
    assert (found.step, found.next_due_ms) == (7, 1_700_000_000_200)
    assert found.waiting == {0: (_ROOT / "topology/f1/waiting/d.parquet",)}
    assert (found.totals.taken, found.totals.pending, found.totals.made) == (9, 2, 0)
    assert found.totals.are_balanced
    assert Processed.from_document(found.to_document(_ROOT), _ROOT) == found


def test_another_form_is_refused_by_its_number() -> None:
    """A newer one; and what this version writes has a number that earlier ones refuse."""
    document = Processed().to_document(_ROOT)
    assert document["format"] == 5
    for other in (3, 6, None):
        with pytest.raises(CheckpointError, match=f"format {other}; this version reads 4 and 5"):
            Processed.from_document({**document, "format": other}, _ROOT)


@pytest.mark.promise("process-event-unaccounted")
@pytest.mark.parametrize("lost", ["acked", "pending", "made_acked", "made_dead", "made_replayed"])
def test_events_and_what_bolts_made_are_balanced_apart(lost: str) -> None:
    totals = ProcessTotals(
        taken=5, replayed=1, acked=3, dead=1, pending=2,
        made=4, made_replayed=2, made_acked=1, made_dead=2, made_pending=3,
    )  # fmt: skip
    assert totals.are_balanced
    assert totals.waiting == 5
    assert not replace(totals, **{lost: getattr(totals, lost) + 1}).are_balanced
