"""Check the settings that the clients share, and make the HTTP client, which needs the packages of an extra."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from incoming_payments.errors import ConfigurationError

if TYPE_CHECKING:
    from incoming_payments.outbound._aiohttp import AsyncHttpClient

_NAMES = {"bool": "True or False", "str": "a string", "SSLContext": "an ssl.SSLContext"}


def check_number(name: str, value: float, least: float, most: float) -> None:
    """Raise `ConfigurationError` unless the setting `name` is a number from `least` to `most`."""
    if type(value) not in (int, float) or not least <= value <= most:
        raise wrong(name, f"must be a number from {least:.15g} to {most:.15g}")


def check_types(kind: type, values: Mapping[str, object]) -> None:
    """Raise `ConfigurationError` unless each setting in `values` is of the type `kind`, or `None`."""
    for name, value in values.items():
        if value is not None and not isinstance(value, kind):
            named = _NAMES.get(kind.__name__, f"of the type {kind.__name__}")
            raise wrong(name, f"must be {named}, not of the type {type(value).__name__}")


def open_http(**settings: Any) -> "AsyncHttpClient":
    """Return a new `AsyncHttpClient`. If a package is missing, the `ModuleNotFoundError` names the extra to install."""
    try:
        from incoming_payments.outbound._aiohttp import AsyncHttpClient
    except ModuleNotFoundError as error:
        text = f"{error.name} is not installed: run pip install 'incoming-payments[outbound]'"
        raise ModuleNotFoundError(text, name=error.name) from error
    return AsyncHttpClient(**settings)


def wrong(name: str, why: str) -> ConfigurationError:
    """Return the error for the setting `name`."""
    return ConfigurationError(f"{name} {why}", setting=name)
