"""`before-house`: its code, and what a life of it left behind in Kafka and on disk.

`python -m tests.support.house CODE` lets the code in that folder live the first life, and keeps
what is left as `tests/golden/before-house/world.tar.xz`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from sequitur.embedded import EmbeddedBroker
from tests.support.tree import ROOT
from tests.support.waiting import PATIENCE_S

_GOLDEN: Final = ROOT / "tests" / "golden" / "before-house"
_WORLD: Final = _GOLDEN / "world.tar.xz"
_LIFE: Final = "tests/support/house_life.py"
MARK: Final = "golden"
COMMIT: Final = (_GOLDEN / "commit").read_text().strip()


def unpack_world(folder: Path) -> None:
    """Put down what was left: `broker`, the folder of an embedded one, and `life`.

    The broker has forgotten the producers, as it does after a day: so it is whatever the day is.
    """
    with tarfile.open(_WORLD) as packed:
        packed.extractall(folder, filter="data")
    for snapshot in (folder / "broker" / "data").glob(f"*-{MARK}*/*.snapshot"):
        snapshot.unlink()


def unpack_code(folder: Path) -> bool:
    """Put down the code of `before-house`; False where the repository does not have it."""
    packed = folder / "code.tar"
    command = ["git", "-C", str(ROOT), "archive", f"--output={packed}", COMMIT]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        return False
    with tarfile.open(packed) as files:
        files.extractall(folder, filter="data")
    return True


def live(
    which: str, bootstrap_servers: str, folder: Path, *, code: Path = ROOT, mark: str = MARK
) -> list[int]:
    """Live the first life, or the last; the numbers that the last one's subscription received."""
    # The code of then knows no settings of the tests of today, and would refuse them.
    ours = {name: value for name, value in os.environ.items() if "SEQUITUR_TEST" not in name}
    environ = {**ours, "PYTHONPATH": str(code)}
    command = [sys.executable, str(ROOT / _LIFE), which, bootstrap_servers, str(folder), mark]
    said = subprocess.run(
        command, check=False, env=environ, cwd=code, stdout=subprocess.PIPE, timeout=8 * PATIENCE_S
    )
    if which == "first":
        assert said.returncode == -9, said
        return []
    assert said.returncode == 0, said
    received: list[int] = json.loads(said.stdout)
    return received


def forget_last_mark(folder: Path) -> int:
    """Make it a life that died between its last rows and the mark that these are out; the step."""
    newest = max((folder / "checkpoint" / "done").iterdir())
    newest.unlink()
    return int(newest.name)


def _record(code: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        broker, life = folder / "broker", folder / "life"
        life.mkdir()
        with EmbeddedBroker(broker, short_lived=True) as started:
            live("first", started.bootstrap_servers, life, code=code)
        with tarfile.open(_WORLD, "w:xz", preset=9) as packed:
            packed.add(broker / "data", "broker/data", filter=_bare)
            packed.add(life, "life", filter=_bare)


def _bare(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    _record(Path(sys.argv[1]))
