"""Documents: what is stored as JSON is a `msgspec.Struct`, and its fields are the stored form.

A kind with a format number has it as its tag (`tag_field`, `tag`), and has a `TITLE` for errors.
If values have another shape in memory, the kind has `to_stored`, which returns a copy with fields
as they are stored, and a class method `from_stored`, which takes the stored fields and returns
those of the kind.

A field for a `File` is stored as the file's name from a root: so a folder with documents and files
can be moved.
"""

from __future__ import annotations

from abc import ABC
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from sequitur.errors import StateFormatError

if TYPE_CHECKING:
    from collections.abc import Mapping


_Kind = TypeVar("_Kind")


class File(ABC):  # noqa: B024 - classes are registered
    """Where a file is: the classes that can say so are registered."""


def dump(document: Any, root: Any = None) -> dict[str, Any]:
    """Return a document as JSON values, in the order of its fields. Files are named from `root`."""
    shape = getattr(document, "to_stored", None)
    fields = document if shape is None else shape()
    name = partial(_name, root)
    stored: dict[str, Any] = msgspec.to_builtins(fields, str_keys=True, enc_hook=name)
    return stored


def load(kind: type[_Kind], document: Mapping[str, Any], root: Any = None) -> _Kind:
    """Read `dump` back. No field may be missing, unless the kind omits its defaults.

    Args:
        kind: What it is.
        document: Its JSON values.
        root: The folder that files are named from.

    Raises:
        StateFormatError: The document has another format number, and the error has no cause. Or its
            fields are not those of the kind, and the cause says why.
    """
    form: Any = kind
    config, title = form.__struct_config__, getattr(kind, "TITLE", kind.__name__)
    found = document.get(config.tag_field) if isinstance(document, dict) else None
    if found != config.tag:
        raise StateFormatError(f"{title} of format {found!r}, this version reads {config.tag}")
    try:
        shape = getattr(kind, "from_stored", None)
        fields = document if shape is None else shape(document)
        loaded = msgspec.convert(fields, kind, str_keys=True, dec_hook=partial(_file, root))
        if not config.omit_defaults:
            for name in form.__struct_encode_fields__:
                fields[name]
    except KeyError as error:
        raise StateFormatError(f"{title} has no {error}") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise StateFormatError(f"{title}: {error}") from error
    return loaded


def _name(root: Any, file: Any) -> str:
    if root is None or not isinstance(file, File):
        raise NotImplementedError(f"{type(file).__name__} {file!r} is not stored")
    return str(file).removeprefix(f"{root}/")


def _file(root: Any, kind: type, name: Any) -> Any:
    if root is None or kind is not File:
        raise NotImplementedError(f"{kind.__name__} is not stored")
    return root / name
