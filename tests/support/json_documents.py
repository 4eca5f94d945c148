"""JSON documents for Hypothesis: sound ones, damaged ones, plain ones."""

from __future__ import annotations

import json

from hypothesis import strategies as st

_NAMES = st.sampled_from(
    ["at", "a", "", "At", "xat", '"at"', "at\\", "\u00e9", "a:t", "{", "\n", ":", ","]
)
_SCALARS = (
    st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.booleans()
    | st.none()
    | st.text(max_size=8)
    | st.sampled_from(['"at":5', ',"at":5', '"', "\\", "}", '{"at":5}', "\x00", "1700000000000"])
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=6,
)
_FIELDS = st.lists(st.tuples(_NAMES, st.integers(0, 2**62) | _VALUES), max_size=5)
_COMMAS = st.sampled_from([",", ", ", " ,\n"])
_COLONS = st.sampled_from([":", ": ", " :", " :\t", ":  "])


@st.composite
def documents(draw: st.DrawFn) -> str:
    """JSON objects in which names may be there twice, with other blanks at each field."""
    ascii_only = draw(st.booleans())
    document = ""
    for name, value in draw(_FIELDS):
        comma, colon = draw(_COMMAS), draw(_COLONS)
        before = comma if document else ""
        texts = [
            json.dumps(one, ensure_ascii=ascii_only, separators=(comma, colon))
            for one in (name, value)
        ]
        document += before + colon.join(texts)
    return "{" + document + "}"


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """Such an object with something put in, taken out or put behind."""
    document = draw(documents())
    at = draw(st.integers(0, len(document)))
    cut = draw(st.integers(0, 2))
    put_in = draw(
        st.sampled_from(["", "0", "-", '"', ",", "}", "{", "\\", " ", "at", "e", ".", "\n"])
    )
    return document[:at] + put_in + document[at + cut :]


PLAIN_TEXT = st.text(st.characters(codec="utf-8", exclude_characters='"\\', min_codepoint=32))
PLAIN = st.integers(-(2**62), 2**62) | st.booleans() | st.none() | PLAIN_TEXT
