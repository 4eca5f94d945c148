"""Stored forms stay: this version writes and reads them as `tests/golden/0.1.0` has them."""

from __future__ import annotations

import pytest

from tests.support.stored_forms import PROBE, Form, as_golden, forms, golden_forms, of_golden

_FORMS = {form.name: form for form in forms()}
_GOLDEN = golden_forms()
_PACKS_ALIKE = as_golden(_FORMS[PROBE]) == _GOLDEN[PROBE]


def _ids(form: Form) -> str:
    return ascii(form.name)


def test_each_form_has_a_golden_one_and_each_golden_one_a_form() -> None:
    assert list(_FORMS) == list(_GOLDEN)


@pytest.mark.parametrize("form", _FORMS.values(), ids=_ids)
def test_a_form_is_written_as_version_0_1_0_writes_it(form: Form) -> None:
    if not form.is_packed or _PACKS_ALIKE:
        assert as_golden(form) == _GOLDEN[form.name]


@pytest.mark.parametrize("form", [one for one in _FORMS.values() if one.read], ids=_ids)
def test_a_form_of_version_0_1_0_is_read(form: Form) -> None:
    assert form.read is not None
    assert form.read(of_golden(_GOLDEN[form.name])) == form.value
