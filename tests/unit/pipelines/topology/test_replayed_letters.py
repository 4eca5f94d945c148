"""Which dead letters were replayed: noted once, also by two commands at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sequitur.errors import CheckpointError
from sequitur.pipelines.store.storage import LocalStorage
from sequitur.pipelines.topology.replay import ReplayedLetters

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.promise("process-dlq-replay-run")
def test_a_letter_is_taken_once(tmp_path: Path) -> None:
    """Of each partition, whatever stands beside it."""
    letters = ReplayedLetters(LocalStorage(tmp_path), "topic-id")
    assert letters.take({(0, 1), (0, 2), (1, 1)}) == {(0, 1), (0, 2), (1, 1)}
    assert letters.take({(0, 2), (0, 3), (1, 0), (1, 2)}) == {(0, 3), (1, 0), (1, 2)}
    again = ReplayedLetters(LocalStorage(tmp_path), "topic-id")
    assert again.take({(0, 1), (0, 3), (1, 2)}) == set()


def test_a_topic_made_anew_starts_without_any(tmp_path: Path) -> None:
    """Other letters stand in the same places."""
    ReplayedLetters(LocalStorage(tmp_path), "topic-id").take({(0, 1)})
    assert ReplayedLetters(LocalStorage(tmp_path), "another").take({(0, 1)}) == {(0, 1)}


@pytest.mark.promise("process-dlq-replay-run")
def test_of_two_commands_at_once_each_letter_is_one_s(tmp_path: Path) -> None:
    """The second finds its document taken, and looks again."""

    class Beaten(LocalStorage):
        def create(self, name: str, text: str) -> bool:
            if not beaten:
                beaten.append(ReplayedLetters(LocalStorage(tmp_path), "id").take({(0, 1), (0, 2)}))
            return super().create(name, text)

    beaten: list[set[tuple[int, int]]] = []
    assert ReplayedLetters(Beaten(tmp_path), "id").take({(0, 2), (0, 3)}) == {(0, 3)}
    assert beaten == [{(0, 1), (0, 2)}]


def test_a_newer_versions_notes_are_refused_by_name(tmp_path: Path) -> None:
    """Unread they would be taken for none."""
    storage = LocalStorage(tmp_path)
    ReplayedLetters(storage, "id").take({(0, 1)})
    (tmp_path / "replayed" / "000001").write_text('{"format": 2}')
    with pytest.raises(CheckpointError, match=r"replayed/000001 .*format 2; this version reads 1"):
        ReplayedLetters(storage, "id").take({(0, 1)})
