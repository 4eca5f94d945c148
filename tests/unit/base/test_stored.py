"""Documents: one `dump` and one `load`, which guesses at nothing."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec
import pytest

from sequitur.base.stored import File, dump, load
from sequitur.errors import StateFormatError

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Place(msgspec.Struct, frozen=True, tag_field="format", tag=3):
    TITLE: ClassVar = "place"
    name: str
    rows: int = 0


class _Row(msgspec.Struct, frozen=True):
    counts: dict[tuple[str, int], int]

    def to_stored(self) -> dict[str, Any]:
        return {"counts": [[*key, count] for key, count in self.counts.items()]}

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any]) -> dict[str, Any]:
        return {"counts": {(name, part): count for name, part, count in stored["counts"]}}


class _Path(PurePosixPath, File):
    pass


class _Kept(msgspec.Struct, frozen=True):
    files: list[File]


class _Sparse(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    most_rows: int = 7
    name: str | None = None

    @classmethod
    def own(cls) -> Self:
        return cls(most_rows=8)


def test_a_document_is_its_fields_after_its_format_number() -> None:
    assert list(dump(_Place("a", 2)).items()) == [("format", 3), ("name", "a"), ("rows", 2)]
    assert load(_Place, {"format": 3, "name": "a", "rows": 2, "newer": 1}) == _Place("a", 2)


def test_a_kind_gives_its_values_another_shape() -> None:
    row = _Row({("a", 1): 5})
    assert dump(row) == {"counts": [["a", 1, 5]]}
    assert load(_Row, dump(row)) == row


def test_a_file_is_named_from_a_root_that_may_be_another_one() -> None:
    kept = _Kept([_Path("/a/b/c")])
    assert dump(kept, _Path("/a")) == {"files": ["b/c"]}
    assert load(_Kept, {"files": ["b/c"]}, _Path("/x")) == _Kept([_Path("/x/b/c")])


def test_what_is_no_file_is_not_stored_as_its_name() -> None:
    with pytest.raises(NotImplementedError, match="is not stored"):
        dump(_Kept([PurePosixPath("/a/b")]), _Path("/a"))  # type: ignore[list-item]


def test_defaults_that_a_kind_omits_may_be_missing() -> None:
    assert (dump(_Sparse()), dump(_Sparse.own())) == ({}, {"mostRows": 8})
    assert load(_Sparse, {}) == _Sparse()


@pytest.mark.parametrize("found", [{}, {"format": 2}, {"format": "3"}, {"format": None}])
def test_another_format_is_refused_by_its_number(found: dict[str, Any]) -> None:
    """The fields are not looked at: another version may mean something else by them."""
    number = found.get("format")
    refused = f"^place of format {number!r}, this version reads 3$"
    with pytest.raises(StateFormatError, match=refused) as error:
        load(_Place, {"name": "a", "rows": 0, **found})
    assert error.value.__cause__ is None


@pytest.mark.parametrize(
    ("kind", "fields", "why"),
    [
        (_Place, {"format": 3, "name": "a"}, "^place has no 'rows'$"),
        (_Place, {"format": 3, "name": 1, "rows": 0}, r"^place: .* - at `\$\.name`$"),
        (_Row, {}, "^_Row has no 'counts'$"),
        (_Row, {"counts": [1]}, "^_Row: "),
        (_Row, {"counts": [["a", "b", 1]]}, "^_Row: "),
    ],
)
def test_fields_of_another_kind_are_refused_with_the_cause(
    kind: type[Any], fields: dict[str, Any], why: str
) -> None:
    with pytest.raises(StateFormatError, match=why) as error:
        load(kind, fields)
    assert error.value.__cause__ is not None
