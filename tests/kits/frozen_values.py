"""Values do not change."""

import attrs
import pytest
from attrs.exceptions import FrozenInstanceError


def assert_frozen(*values: attrs.AttrsInstance) -> None:
    """No attribute of any of `values` can be set, not even to what it is."""
    for value in values:
        for attribute in attrs.fields(type(value)):
            with pytest.raises(FrozenInstanceError):
                setattr(value, attribute.name, getattr(value, attribute.name))
