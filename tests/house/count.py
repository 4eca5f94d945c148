"""How many lines each product has, and which files one row passes: `make count`."""

from __future__ import annotations

import ast
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

_PRODUCTS: Final = {
    "producer": ("producer/",),
    "reorder": ("consumer/reorder/", "consumer/__init__.py", "pipelines/"),
    "topology": ("consumer/topology/", "pipelines/topology/", "pipelines/process.py"),
    "subscription": ("consumer/subscription/", "pipelines/ordering/job_subscription.py"),
    "base": ("sequitur/base/", "sequitur/kafka/", "sequitur/errors.py"),
    "shell": ("sequitur/",),
    "tests": ("tests/",),
}
"""A file belongs to the product with the longest beginning of its path."""


def _sources() -> Iterator[Path]:
    for folder in ("producer", "consumer", "pipelines", "sequitur", "tests"):
        links = {path for path in (ROOT / folder).iterdir() if path.is_symlink()}
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not links & set(path.parents):
                yield path


def _product_of(path: Path) -> str:
    name = path.relative_to(ROOT).as_posix()
    found = {
        beginning: product
        for product, beginnings in _PRODUCTS.items()
        for beginning in beginnings
        if name.startswith(beginning)
    }
    return found[max(found, key=len)]


def kinds_of_lines(path: Path) -> Counter[str]:
    """Count the lines of a source that are code, docstring, comment, import or blank."""
    text = path.read_text()
    kinds = ["code" if line.strip() else "blank" for line in text.splitlines()]
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


def _way_of_a_row() -> list[str]:
    """Return the files that are entered while one row is staged, released and sent."""
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
    """Print the lines of each product, and the way of a row."""
    lines = {product: Counter[str]() for product in _PRODUCTS}
    files = Counter[str]()
    for path in _sources():
        product = _product_of(path)
        lines[product] += kinds_of_lines(path)
        files[product] += 1
    print(f"{'product':14}{'lines':>8}{'code':>8}{'docstring':>11}{'comment':>9}{'files':>7}")
    for product, kinds in lines.items():
        print(
            f"{product:14}{kinds.total():8,}{kinds['code']:8,}{kinds['docstring']:11,}"
            f"{kinds['comment']:9,}{files[product]:7,}"
        )
    way = _way_of_a_row()
    print(f"\nfiles that one row passes, outside of kafka, base and store: {len(way)}")
    print("  " + "\n  ".join(way))


if __name__ == "__main__":
    main()
