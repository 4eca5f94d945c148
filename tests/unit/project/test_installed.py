"""The wheel, in a folder where the user has files called as tutorials call them."""

from __future__ import annotations

import json

import pytest

from tests.support.installed import Installed, install_wheel

pytestmark = [pytest.mark.slow, pytest.mark.one_process]  # builds, and makes a virtual environment


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """One environment for all tests: it is only read."""
    return install_wheel(tmp_path_factory.mktemp("installed"))


def test_nothing_but_sequitur_is_installed(installed: Installed) -> None:
    """No other name of ours is in the way of a user's own."""
    found = {path.name for path in installed.packages.iterdir()}
    ours = {name for name in found if not name.endswith((".dist-info", ".pth"))}
    assert ours == {"sequitur"}
    assert (installed.packages / "sequitur" / "py.typed").exists()


def test_the_users_files_are_in_nobodys_way(installed: Installed) -> None:
    """What is public is imported from the wheel, beside a user's producer.py and the others."""
    program = (
        "import json, sequitur, sequitur.errors, sequitur.testing\n"
        "modules = {getattr(sequitur, name).__module__ for name in sequitur.__all__\n"
        "           if isinstance(getattr(sequitur, name), type)}\n"
        "print(json.dumps([sequitur.__file__, sorted(modules)]))\n"
    )
    run = installed.run("python", "-c", program)
    assert run.returncode == 0, run.stderr
    file, modules = json.loads(run.stdout)
    assert file == str(installed.packages / "sequitur" / "__init__.py")
    assert modules
    assert {name.partition(".")[0] for name in modules} == {"sequitur"}


@pytest.mark.test_all
@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("sequitur", ["--help"]),
        ("produce-events", ["--help"]),
        ("python", ["-m", "sequitur", "--help"]),
        ("python", ["-m", "sequitur.producer", "--help"]),
    ],
)
def test_both_commands_run_beside_the_users_files(
    installed: Installed, program: str, arguments: list[str]
) -> None:
    """By their scripts and as modules, which look into the current folder first."""
    run = installed.run(program, *arguments)
    assert run.returncode == 0, run.stderr
    assert "Usage" in run.stdout


_HEAVY = ("aiokafka", "confluent_kafka", "pandas", "pyarrow", "pyspark")


@pytest.mark.parametrize(
    ("module", "more"), [("sequitur", ("numpy", "pydantic")), ("sequitur.testing", ())]
)
def test_what_is_loaded_is_what_is_needed(
    installed: Installed, module: str, more: tuple[str, ...]
) -> None:
    """`import sequitur` loads little; a topology's tests load neither Kafka client nor Spark."""
    program = f"import sys, json, {module}; print(json.dumps(sorted(sys.modules)))"
    run = installed.run("python", "-c", program)
    assert run.returncode == 0, run.stderr
    loaded = {name.partition(".")[0] for name in json.loads(run.stdout)}
    assert not loaded & {*_HEAVY, *more}
