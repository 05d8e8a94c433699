"""Tests of references: which members of the metadata are references, and which texts are valid."""

import json

import pytest

from incoming_payments.domain.payment import MetadataJson
from incoming_payments.domain.reference import Reference, reference_of, reference_text
from incoming_payments.errors import InvalidValue


@pytest.mark.parametrize("value", ["", "x" * 256, "\0", "\ud800", 7, None, True, ["INV-7"], {"a": "INV-7"}])
def test_other_values_are_no_references(value: object) -> None:
    """Only a text of 1 to 255 characters is a reference."""
    assert reference_of(MetadataJson(json.dumps({"externalRef": value})), "externalRef") is None


@pytest.mark.parametrize("value", ["I", "x" * 255, "€ 25", "\n", "\U0001f600"])
def test_text_is_a_reference(value: str) -> None:
    """All characters that metadata can have are allowed. Only the member with the name counts."""
    metadata = MetadataJson(json.dumps({"externalRef": value, "other": "INV-8"}))
    assert reference_of(metadata, "externalRef") == value
    assert Reference("externalRef", value).is_in(metadata)
    assert not Reference("other", value).is_in(metadata)
    assert not Reference("externalRef", "INV-8").is_in(metadata)
    assert not Reference("externalRef", value).is_in(None)


@pytest.mark.parametrize("text", ["", "x" * 256, "a\0", "\udcff", 7, None])
def test_invalid_text_is_refused(text: str) -> None:
    """The error names the member."""
    with pytest.raises(InvalidValue) as caught:
        reference_text(text, member="name")
    assert caught.value.description == ("name must be a text of 1 to 255 characters, without NUL and lone surrogates")
    with pytest.raises(InvalidValue):
        Reference("externalRef", text)
