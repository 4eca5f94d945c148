"""Who a process is, and whether it has ended, also where `/proc` does not show it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sequitur.base import process
from sequitur.base.process import ProcessIdentity
from sequitur.consumer.subscription.claims import Claim, ClaimWatch, Hold
from sequitur.errors import OwnershipError
from sequitur.pipelines.store.ownership import Ownership, refuse_if_owned
from sequitur.pipelines.store.storage import LocalStorage
from tests.support.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Proc:
    """A `/proc` that hides other processes, as with `hidepid=2`, or refuses to show them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "sys/kernel/random").mkdir(parents=True)
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        (folder / "sys/kernel/random/boot_id").write_text(boot)
        (folder / "self/ns").mkdir(parents=True)
        (folder / "self/ns/pid").symlink_to(Path("/proc/self/ns/pid").readlink())

    def refuse(self, number: int) -> None:
        """Let a process be listed, and its file fail to be read."""
        (self.folder / f"{number}/stat").mkdir(parents=True)


@pytest.fixture(params=["hidden", "refused"])
def other(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ProcessIdentity]:
    """A process that is alive, and of which this one is not shown anything."""
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        found = process._status(child.pid)
        assert found is not None
        proc = _Proc(tmp_path / "proc")
        if request.param == "refused":
            proc.refuse(child.pid)
        monkeypatch.setattr(process, "_PROC", proc.folder)
        assert process._status(child.pid) is None
        assert child.stdin is not None
        yield replace(ProcessIdentity.own(), process=child.pid, started=found[1])
        child.stdin.close()


@pytest.mark.promise("order-second-job-started")
@pytest.mark.promise("sub-subscription-opened-process")
def test_a_process_that_is_not_shown_has_not_ended(
    other: ProcessIdentity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its subscription and its checkpoint are its own while its claim and its heartbeat move."""
    assert not other.is_gone()
    claim = Claim("life", 1, 15_000, None, other)
    watch = ClaimWatch()
    assert watch.judge("s", claim) is Hold.UNDECIDED
    assert watch.judge("s", claim.renewed(6)) is Hold.YOUNG
    storage = LocalStorage(tmp_path / "checkpoint")
    with monkeypatch.context() as patch:
        patch.setattr(ProcessIdentity, "own", lambda: other)
        first = Ownership(storage)
        first.take()
    with pytest.raises(OwnershipError, match=f"process {other.process}, has this checkpoint"):
        refuse_if_owned(storage)
    first.release()


def test_a_process_that_has_ended_is_gone_also_where_none_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_PROC", _Proc(tmp_path).folder)
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    own = replace(ProcessIdentity.own(), started=7)
    assert replace(own, process=child.pid).is_gone()
    assert replace(own, process=1 << 62).is_gone()
    assert not replace(own, process=os.getpid()).is_gone()
    assert not replace(own, process=child.pid, space="another").is_gone()
