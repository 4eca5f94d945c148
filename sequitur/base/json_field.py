"""A field of a JSON value, found without building the rest of it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from sequitur.errors import KeySpecError

_json_value: Final = msgspec.json.Decoder(msgspec.Raw)
_NO_JSON: Final = (msgspec.DecodeError, RecursionError)


_json_string: Final = msgspec.json.Decoder(str)


class JsonField:
    """One field of a JSON value, found without building the rest of it.

    Of equal names the last counts.
    """

    def __init__(self, path: str) -> None:
        names = path.split(".")
        if not all(names):
            raise KeySpecError(f"{path!r}: expected names divided by dots, such as meta.host")
        kind: Any = msgspec.Raw
        for name in reversed(names):
            kind = msgspec.defstruct(
                "Field",
                [("found", kind | msgspec.UnsetType, msgspec.UNSET)],
                rename={"found": name},
                gc=False,
            )
        self._decoder = msgspec.json.Decoder(kind)
        self._depth = len(names)
        self.path = path

    def of(self, value: bytes) -> bytes | None:
        """Return the field as written, None where there is none."""
        try:
            node: Any = self._decoder.decode(value)
        except msgspec.ValidationError:  # something on the way is no object
            _json_value.decode(value)
            return None
        for _ in range(self._depth):
            node = node.found
            if node is msgspec.UNSET:
                return None
        found = bytes(node)
        return None if found == b"null" else found

    def text_of(self, value: bytes) -> bytes | None:
        """`of`, but of a string its characters in UTF-8, without quotes and escapes."""
        found = self.of(value)
        if found is None or found[:1] != b'"':
            return found
        return _characters(found)

    def id_in(self, value: bytes | None) -> bytes | None:
        """Return the field as an id: `text_of`, of a string behind a quote; 1 is not "1".

        None also where there is no value, or no JSON, or no UTF-8.
        """
        if value is None:
            return None
        try:
            found = self.of(value)
            if found is None or found[:1] != b'"':
                return found
            return b'"' + _characters(found)
        except (UnicodeDecodeError, *_NO_JSON):
            return None


def _characters(written: bytes) -> bytes:
    """Return the characters of a string of JSON, in UTF-8."""
    return _json_string.decode(written).encode() if b"\\" in written else written[1:-1]


def parse_key(text: str) -> JsonField:
    """Read the setting `key`: `json:host`, `json:meta.host`."""
    kind, _, path = text.partition(":")
    if kind != "json" or not path or not all(path.split(".")):
        raise KeySpecError(f"{text!r}: expected json:<path>, such as json:host or json:meta.id")
    return JsonField(path)
