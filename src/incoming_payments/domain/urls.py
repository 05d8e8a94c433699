"""Give URLs their canonical spelling, and check URLs for use in a header field."""

import re
from typing import Final
from urllib.parse import urlsplit

from incoming_payments.errors import InvalidValue
from incoming_payments.limits import URL_CHARS_MAX

_URL: Final = re.compile(r"https?://[!-~]+", re.IGNORECASE | re.ASCII)
_AUTHORITY: Final = re.compile(r"([A-Za-z0-9._~\-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")  # a host and an optional port
# a path that servers may interpret in different ways. It may also contain %25, because a second decoding turns %252F
# into a slash.
_ODD_PATH: Final = re.compile(r"%2f|%5c|%25|/(?:\.|%2e){1,2}(?:[/;]|$)", re.IGNORECASE)
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def canonical_url(text: object, *, member: str) -> str:
    """Return `text` with scheme and host in lower case, without the default port and without trailing slashes.

    Raises `InvalidValue`, which names `member`, unless `text` is an absolute http or https URL in ASCII of bounded
    length. The URL decides where money goes, so the function also refuses user information, fragments, backslashes, dot
    segments (even percent-encoded) and invalid ports.

    >>> canonical_url("https://Bank.Example:443/op/", member="base_url")
    'https://bank.example/op'
    """
    if isinstance(text, str) and text.startswith("$"):
        raise _refusal(member, "is a payment pointer: write a URL, with https:// in place of $")
    if not isinstance(text, str) or len(text) > URL_CHARS_MAX or not _URL.fullmatch(text):
        text = f"must be an absolute http or https URL, in ASCII, of at most {URL_CHARS_MAX} characters"
        raise _refusal(member, text)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise _refusal(member, "must have a valid host and port, such as bank.example or bank.example:8443") from None
    if "@" in parts.netloc:
        raise _refusal(member, "must not contain a user name or password")
    if "#" in text or "\\" in text:
        raise _refusal(member, "must not contain a fragment or a backslash")
    authority = _AUTHORITY.fullmatch(parts.netloc)
    if not authority:
        raise _refusal(member, "must have a valid host and port, such as bank.example or bank.example:8443")
    if any(segment in {".", ".."} for segment in parts.path.lower().replace("%2e", ".").split("/")):
        raise _refusal(member, "must not contain dot segments")
    suffix = "" if port is None or port == _DEFAULT_PORTS[parts.scheme] else f":{port}"
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{authority[1].lower()}{suffix}{parts.path.rstrip('/')}{query}"


def has_plain_path(url: str) -> bool:
    """Return whether all servers interpret the path of `url` in the same way.

    Servers differ in their interpretation of an encoded slash, backslash or percent sign, and of dot segments with path
    parameters. The library sends no request to such a URL. `canonical_url` accepts these URLs, because it also reads
    stored URLs.

    >>> [has_plain_path(f"https://bank.example/{path}") for path in ("alice", "..%2Fadmin", "%252e", "..;/admin")]
    [True, False, False, False]
    """
    return not _ODD_PATH.search(url.partition("?")[0])


def header_safe_url(url: object, *, member: str) -> str:
    """Return `url` if it is an absolute http or https URL that needs no quotes in a header field.

    `WWW-Authenticate` has the URL without quotes, so this function refuses characters that end a parameter. Raises
    `InvalidValue`, which names `member`.
    """
    if (
        not isinstance(url, str)
        or len(url) > URL_CHARS_MAX
        or not _URL.fullmatch(url)
        or not set(url).isdisjoint('<>"\\,;')
    ):
        raise _refusal(member, "must be an absolute http or https URL without quotes, commas or semicolons")
    return url


def _refusal(member: str, why: str) -> InvalidValue:
    return InvalidValue(f"{member} {why}", member=member)
