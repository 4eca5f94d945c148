"""Sequitur as its users have it: a wheel in an environment of its own, away from the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Collection

_OWN_FILES = ("producer.py", "consumer.py", "pipelines.py")


@dataclass(frozen=True)
class Installed:
    """An environment that holds the wheel.

    Attributes:
        environment: The virtual environment.
        user: A folder of a user's, with files that are called as tutorials call them.
    """

    environment: Path
    user: Path

    def run(
        self, program: str, *arguments: str, without: Collection[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in the user's folder, without some variables."""
        left_out = {"PYTHONPATH", *without}
        return subprocess.run(
            [self.environment / "bin" / program, *arguments],
            cwd=self.user,
            env={name: value for name, value in os.environ.items() if name not in left_out},
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def packages(self) -> Path:
        (found,) = self.environment.glob("lib/python3*/site-packages")
        return found


def install_wheel(folder: Path, *, without: Collection[str] = ()) -> Installed:
    """Build the sdist, from it the wheel, and install that beside dependencies, but for some."""
    _build("sdist", ROOT, folder)
    (sdist,) = folder.glob("sequitur_kafka-*.tar.gz")
    subprocess.run(["tar", "-xzf", sdist, "-C", folder], check=True)
    wheel = build_wheel(folder, sdist.with_name(sdist.name.removesuffix(".tar.gz")))
    user = folder / "user"
    user.mkdir()
    for name in _OWN_FILES:
        (user / name).write_text('raise SystemExit(f"the user\'s {__name__} was imported")\n')
    installed = Installed(without_it(folder / "environment", without), user)
    subprocess.run(
        [
            sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check",
            "--python", folder / "environment", "install", "--no-index", "--no-deps", wheel,
        ],
        check=True,
    )  # fmt: skip
    return installed


def build_wheel(folder: Path, source: Path = ROOT) -> Path:
    _build("wheel", source, folder)
    (wheel,) = folder.glob("sequitur_kafka-*.whl")
    return wheel


def without_it(environment: Path, without: Collection[str] = ()) -> Path:
    """Make an environment with the dependencies of sequitur, and not that itself.

    They are taken from the environment that the tests run in, whose own installation of the
    checkout is left out: a line of a `.pth` file is a folder, and its `.pth` files do not count.
    Packages of some names can be left out, too.
    """
    venv.create(environment, with_pip=False, symlinks=True)
    (packages,) = environment.glob("lib/python3*/site-packages")
    dependencies = Path(sysconfig.get_path("purelib"))
    if without:
        links = environment / "dependencies"
        links.mkdir()
        for one in dependencies.iterdir():
            if one.name.partition("-")[0] not in without:
                (links / one.name).symlink_to(one)
        dependencies = links
    (packages / "dependencies.pth").write_text(f"{dependencies}\n")
    return environment


def _build(target: str, source: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
