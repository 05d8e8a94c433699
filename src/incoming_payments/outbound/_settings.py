"""Check the settings that the clients share, and make the HTTP clients, which need the packages of an extra."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from incoming_payments.errors import ConfigurationError

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


def open_http(**settings: Any) -> Any:
    """Return a new `HttpClient`."""
    with _extra():
        from incoming_payments.outbound._urllib3 import HttpClient
    return HttpClient(**settings)


def open_async_http(**settings: Any) -> Any:
    """Return a new `AsyncHttpClient`."""
    with _extra():
        from incoming_payments.outbound._aiohttp import AsyncHttpClient
    return AsyncHttpClient(**settings)


@contextmanager
def _extra() -> Iterator[None]:
    """Make the error of a failed import in this context name the extra to install.

    The error is still a `ModuleNotFoundError`.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        text = f"{error.name} is not installed: run pip install 'incoming-payments[outbound]'"
        raise ModuleNotFoundError(text, name=error.name) from error


def wrong(name: str, why: str) -> ConfigurationError:
    """Return the error for the setting `name`."""
    return ConfigurationError(f"{name} {why}", setting=name)
