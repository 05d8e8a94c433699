"""Values that were checked cannot be changed afterwards."""

import importlib
import pkgutil

import attrs
import pytest
from attrs.exceptions import FrozenInstanceError

from incoming_payments import httpsig, ilp, wire
from incoming_payments.endpoints import packets as ilp_http


def classes() -> set[type[attrs.AttrsInstance]]:
    """Return the attrs classes of the packages for signatures, packets and JSON."""
    names = [ilp_http.__name__]
    for package in (httpsig, ilp, wire):
        names += [module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    values = [value for name in names for value in vars(importlib.import_module(name)).values()]
    return {value for value in values if isinstance(value, type) and attrs.has(value)}


@pytest.mark.parametrize("cls", sorted(classes(), key=str), ids=lambda cls: cls.__name__)
def test_value_is_frozen(cls: type[attrs.AttrsInstance]) -> None:
    """No attribute of a value can be set, by which a caller or a bug would pass the checks of the constructor."""
    value = cls.__new__(cls)
    for attribute in attrs.fields(cls):
        with pytest.raises(FrozenInstanceError):
            setattr(value, attribute.name, None)
