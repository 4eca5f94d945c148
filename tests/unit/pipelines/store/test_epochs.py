"""Each epoch of a subscription has a folder of its own, below the checkpoint of the first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sequitur.pipelines.store.epochs import folder_of_epoch, newest_epoch
from sequitur.pipelines.store.storage import LocalStorage

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("root", "epoch", "folder"),
    [
        ("/data/job", 0, "/data/job"),
        ("/data/job/", 0, "/data/job/"),
        ("/data/job", 1, "/data/job/epochs/000001"),
        ("/data/job/", 12, "/data/job/epochs/000012"),
        ("s3a://bucket/job", 1_000_000, "s3a://bucket/job/epochs/1000000"),
    ],
)
def test_folder_of_an_epoch(root: str, epoch: int, folder: str) -> None:
    """The first epoch's is the checkpoint, so that a job without a reset knows nothing of them."""
    assert folder_of_epoch(root, epoch) == folder


def test_the_newest_epoch_is_found_by_its_folder(tmp_path: Path) -> None:
    """By number, and not by name; 0 before the first reset."""
    storage = LocalStorage(tmp_path)
    assert newest_epoch(storage) == 0
    for epoch in (1, 999_999, 1_000_000):
        storage.make_folder(folder_of_epoch("", epoch).lstrip("/"))
        assert newest_epoch(storage) == epoch
