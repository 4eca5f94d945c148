"""The peers' own environment: PyFlink and its Kafka connector, apart from the project's packages.

    python -m benchmarks.peers

Apache Beam, which PyFlink needs, holds back pyarrow, protobuf and others by years: in one
environment with ours, one of the two would not run. Packages are pinned in peers.txt, jars in
peers.lock.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sequitur.pipelines.jars import locked_jars

_HERE: Final = Path(__file__).parent
_PACKAGES: Final = _HERE / "peers.txt"
_LOCK: Final = _HERE / "peers.lock"
_FOLDER: Final = Path("build/peers")


@dataclass(frozen=True, slots=True)
class FlinkEnvironment:
    """What a Flink job is started with.

    Attributes:
        python: The interpreter that has PyFlink.
        connector: The jar of its Kafka connector.
    """

    python: Path
    connector: Path


def flink_environment(folder: Path = _FOLDER) -> FlinkEnvironment:
    """PyFlink as pinned, installed where it is not there yet; the first time takes a minute.

    Raises:
        subprocess.CalledProcessError: pip could not install it; what it said stands above.
        JarError: The connector cannot be had, or is not the locked one.
    """
    home = (folder / ".venv").absolute()
    python, installed = home / "bin" / "python", home / "installed"
    wanted = hashlib.sha256(_PACKAGES.read_bytes()).hexdigest()
    if not installed.exists() or installed.read_text() != wanted:
        sys.stderr.write(f"installing the peers into {home}\n")
        shutil.rmtree(home, ignore_errors=True)  # one begun and not ended, or of other packages
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-r", str(_PACKAGES)], check=True)
        installed.write_text(wanted)
    (connector,) = locked_jars("flink", lock_file=_LOCK)
    return FlinkEnvironment(python, connector)


if __name__ == "__main__":
    print(flink_environment())
