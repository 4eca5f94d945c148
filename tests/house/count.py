"""How large the house is: `make count`. Ratios are to `tests/golden/before-house/count.json`.

A line of code is one that is neither blank nor within a docstring, a comment or an import.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import threading
import tokenize
from collections import Counter
from typing import TYPE_CHECKING, Final

from sequitur.consumer.reorder import ReorderSettings
from sequitur.testing import ReorderTester
from tests.support.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import FrameType

_PRODUCT: Final = ("producer", "consumer", "pipelines", "sequitur")
_RECORD: Final = ROOT / "tests" / "golden" / "before-house" / "count.json"
_LONGEST: Final = 8
BUDGETS: Final = {
    "code lines": 0.91,
    "product lines": 0.85,
    "lines of tests": 0.84,
}
"""At most so much of what stood before."""
_LIMITS: Final = {"docstring share": 0.17, "product files": 270}
MET: Final = {"docstring share", "product files"}
"""These have been kept once, and `make check` holds the house to them."""


def _sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        links = {path for path in (ROOT / folder).iterdir() if path.is_symlink()}
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not links & set(path.parents):
                yield path


def kinds_of_lines(path: Path) -> Counter[str]:
    """How many lines of a source are code, docstring, comment, import or blank."""
    text = path.read_text()
    lines = text.splitlines()
    kinds = ["blank" if not line.strip() else "code" for line in lines]
    for node in ast.walk(ast.parse(text)):
        kind = None
        if isinstance(node, ast.Import | ast.ImportFrom):
            kind = "import"
        elif (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            kind = "docstring"
        if kind and isinstance(node, ast.stmt):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                kinds[number] = kind
    with path.open("rb") as source:
        for token in tokenize.tokenize(source.readline):
            if token.type == tokenize.COMMENT and token.line.strip().startswith("#"):
                kinds[token.start[0] - 1] = "comment"
    return Counter(kinds)


def _functions(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            yield size, f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"


def _rooms_imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sequitur."):
            yield ".".join((node.module or "").split(".")[:3])


def count() -> dict[str, float]:
    product = list(_sources(*_PRODUCT))
    kinds = sum(map(kinds_of_lines, product), Counter())
    return {
        "code lines": kinds["code"],
        "product lines": kinds.total(),
        "docstring share": round(kinds["docstring"] / kinds.total(), 3),
        "product files": len(product),
        "lines of tests": sum(kinds_of_lines(path).total() for path in _sources("tests")),
    }


def _show_rooms() -> None:
    importers: dict[str, set[Path]] = {}
    for path in _sources(*_PRODUCT):
        for room in _rooms_imported(path):
            importers.setdefault(room, set()).add(path)
    print("\nimported by files (of rooms with most)")
    for room, files in sorted(importers.items(), key=lambda pair: -len(pair[1]))[:12]:
        print(f"  {len(files):4}  {room}")
    print("\nlongest functions")
    functions = [found for path in _sources(*_PRODUCT) for found in _functions(path)]
    for size, name in sorted(functions, reverse=True)[:_LONGEST]:
        print(f"  {size:4}  {name}")


def _way_of_a_row() -> list[str]:
    """Files that are entered while one row is staged, released and sent through the seam."""
    settings = ReorderSettings.model_validate(
        {"input_topics": ["in"], "output_topic": "out", "checkpoint": "none"}
        | {"event_time": "json:at", "delay": "0 s"}
    )
    found: set[str] = set()

    def enter(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "/sequitur/" in frame.f_code.co_filename:
            found.add(frame.f_code.co_filename.rpartition("/sequitur/")[2])

    with ReorderTester(settings) as tester:
        tester.run([{"value": '{"at":1700000000000}', "key": "a"}])
        threading.setprofile(enter)
        sys.setprofile(enter)
        try:
            tester.restart()
            found.clear()
            tester.run([{"value": '{"at":1700000001000}', "key": "a"}])
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        assert len(tester.released) == 2
    left_out = ("base/", "kafka/", "pipelines/store/", "pipelines/local/tester.py")
    return sorted(name for name in found if not name.startswith(left_out))


def main() -> None:
    """Print the figures; `--record` keeps them, `--check` fails where one that was met is not."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    now = count()
    if given.record:
        _RECORD.write_text(json.dumps(now, indent=1) + "\n")
    before = json.loads(_RECORD.read_text())
    lost = []
    for name, figure in now.items():
        most = before[name] * BUDGETS[name] if name in BUDGETS else _LIMITS[name]
        state = "met" if figure <= most else "not met yet"
        if figure <= most and name not in MET:
            state = "met now: add it to MET in tests/house/count.py"
        if figure > most and name in MET:
            state = "was met before"
            lost.append(name)
        ratio = figure / before[name]
        print(f"{name:16} {figure:9,}  {ratio:.3f} of before, budget {most:,.2f}: {state}")
    if not given.check:
        _show_rooms()
        way = _way_of_a_row()
        print(f"\nfiles entered for one row, outside kafka, base and store: {len(way)}")
        print("  " + "\n  ".join(way))
    elif lost:
        sys.exit("over a budget that had been met: " + ", ".join(lost))


if __name__ == "__main__":
    main()
