"""What users hold on to: public names with their signatures, the help of each command, settings.

`python -m tests.house.face` compares them with `tests/golden/0.1.0`. Each name that differs has to
stand in `tests/golden/changed-names.txt`, so that no change of what users hold on to is made
unseen: `--write` adds the names. `--record` writes `tests/golden/0.1.0` anew, once for a release.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from typing import TYPE_CHECKING, Final

import griffe
import typer.main
from typer.testing import CliRunner

from sequitur.base.settings import Settings, environment_name, fields_of
from sequitur.cli.main import app
from sequitur.producer.daemon.cli import _app as produce_app
from tests.house.public_names import FACES
from tests.support.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

GOLDEN: Final = ROOT / "tests" / "golden" / "0.1.0"
_CHANGED: Final = GOLDEN.parent / "changed-names.txt"
_MARK: Final = "|"


def names() -> Iterator[tuple[str, str]]:
    """Each public name, and what stands behind it."""
    loader = griffe.GriffeLoader(search_paths=[ROOT])
    package = loader.load("sequitur")
    loader.resolve_aliases(implicit=False, external=False)
    for face in FACES:
        module = package.modules_collection[face]
        for name in sorted(map(str, module.exports or ())):
            yield from _members(f"{face}.{name}", module[name])


def _members(path: str, found: griffe.Object | griffe.Alias) -> Iterator[tuple[str, str]]:
    target = found.final_target if isinstance(found, griffe.Alias) else found
    if isinstance(target, griffe.Function):
        yield path, target.signature(name="")
    elif isinstance(target, griffe.Class):
        ancestors = [target, *target.mro()]
        foreign = {str(base) for one in ancestors for base in one.bases}
        foreign -= {one.name for one in ancestors} | {"Exception"}
        yield path, f"class({', '.join(sorted(foreign))})"
        for name, member in sorted(target.all_members.items()):
            if not name.startswith("_") or name == "__init__":
                yield from _members(f"{path}.{name}", member)
    elif isinstance(target, griffe.Attribute):
        is_short = target.value is not None and len(str(target.value)) < 60
        yield path, f"{target.annotation or ''} = {target.value if is_short else '...'}"


def helps() -> Iterator[tuple[str, str]]:
    yield from _helps(("sequitur",), app)
    yield from _helps(("produce-events",), produce_app)


def _helps(words: tuple[str, ...], program: typer.Typer) -> Iterator[tuple[str, str]]:
    environ = {"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"}
    shown = CliRunner().invoke(program, [*words[1:], "--help"], env=environ)
    if shown.exit_code:
        raise RuntimeError(shown.output)
    yield f"{' '.join(words)} --help", re.sub(r" +$", "", shown.output, flags=re.MULTILINE)
    command = typer.main.get_command(program)
    for word in words[1:]:
        command = getattr(command, "commands", {})[word]
    for name in sorted(getattr(command, "commands", ())):
        yield from _helps((*words, name), program)


def settings() -> Iterator[tuple[str, str]]:
    """Each setting with its variable and its default; help has its type."""
    for section, field, info in {
        (section, field): (section, field, info)
        for program in Settings.__subclasses__()
        for section, field, info in fields_of(program)
    }.values():
        yield f"{section}.{field}", f"{environment_name(section, field)} = {info.get_default()!r}"


_RECORDS: Final = {"names.txt": names, "help.txt": helps, "settings.txt": settings}


def _as_text(found: Iterator[tuple[str, str]]) -> str:
    return "".join(
        f"## {name}\n{text}" if "\n" in text else f"## {name} {_MARK} {text}\n"
        for name, text in sorted(found)
    )


def _by_name(text: str) -> dict[str, str]:
    parts = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    return {re.split(rf" \{_MARK} |\n", part, maxsplit=1)[0]: part for part in parts}


def _and_holders(name: str) -> list[str]:
    """Return a name, and those of the class and the module that it is in."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="add the names that are missing")
    parser.add_argument("--record", action="store_true", help="write what is compared with")
    asked = parser.parse_args()
    if asked.record:
        for record, find in _RECORDS.items():
            (GOLDEN / record).write_text(_as_text(find()))
        _CHANGED.write_text("")
    is_writing = asked.write
    known = set(_CHANGED.read_text().split("\n"))
    missing = set()
    for record, find in _RECORDS.items():
        now, before = _by_name(_as_text(find())), _by_name((GOLDEN / record).read_text())
        for name in sorted({*now, *before}):
            was, is_now = before.get(name, ""), now.get(name, "")
            holders = _and_holders(name)
            other = [one for one in holders if (one in now) != (one in before)]
            if was == is_now or not known.isdisjoint(other or [name]):
                continue
            missing.add(other[-1] if other else name)  # what is new or gone stands for its members
            lines = difflib.unified_diff(was.splitlines(), is_now.splitlines(), n=0, lineterm="")
            sys.stderr.writelines(f"{line}\n" for line in lines if not is_writing)
    if is_writing:
        _CHANGED.write_text("\n".join(sorted({*known, *missing} - {""})) + "\n")
    elif missing:
        sys.exit(
            f"changed, and {_CHANGED.relative_to(ROOT)} does not say so: "
            + ", ".join(f"`{name}`" for name in sorted(missing))
        )


if __name__ == "__main__":
    main()
