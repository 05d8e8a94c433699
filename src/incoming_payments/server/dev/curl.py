"""Write a request as a `curl` command for any POSIX shell.

The command sends exactly the bytes of the request. This module runs no command and reads no file.
"""

import ipaddress
import re
import shlex
import socket
from typing import Final

from incoming_payments.errors import InvalidValue
from incoming_payments.httpsig import RequestMessage
from incoming_payments.limits import COMMAND_BODY_BYTES_MAX, PORT_MAX

# URLs that curl would change or refuse, or that the service would read differently, in the order of precedence.
_WRONG_URLS: Final = (
    (r"(?![Hh][Tt][Tt][Pp][Ss]?://)", "does not begin with http:// or https://: add the scheme"),
    (r"(?s:.*[^!-~])", "contains characters other than visible ASCII: percent-encode them"),
    (r".*#", "has a fragment, which is never sent: leave out # and the text after it"),
    (
        r"\w+://[^/?]*@",
        "has a user name or password, which cannot be part of a target URI: leave out the text before @",
    ),
    (r"\w*[A-Z]|\w+://[^/?]*[A-Z]", "has a scheme or host in upper case: write them in lower case"),
    (r"\w+://[^/]*(\?|$)", "has no path: put a slash after the host"),
    (r"http://[^/]*:80/|https://[^/]*:443/", "names the default port: leave out the port"),
    (r"[^?]*\?$", "ends in an empty query: leave out the question mark"),
)
_LABEL: Final = r"[a-z0-9_\-]+"
_AUTHORITY: Final = re.compile(
    rf"https?://(?P<host>{_LABEL}(?:\.{_LABEL})*|\[[0-9a-f:.]+\])(?::(?P<port>[1-9][0-9]{{0,4}}))?/"
)
_NUMBER_LAST: Final = re.compile(r"(?:.*\.)?[0-9][0-9a-fx]*")  # curl may read such a host as an IPv4 address
_DOT_SEGMENT: Final = re.compile(r"/(?:\.|%2[Ee]){1,2}(?:/|$)")
# `printf` leaves these characters unchanged in single quotes
_PLAIN: Final = frozenset(range(0x20, 0x7F)) - frozenset(b"'%\\-")


def check_url(url: str) -> None:
    """Raise `InvalidValue` for a URL that curl would not send as it is written, so that a signature over it would fail.

    >>> check_url("https://bank.example:443/incoming-payments")
    Traceback (most recent call last):
    incoming_payments.errors.InvalidValue: the URL names the default port: leave out the port
    """
    for pattern, why in _WRONG_URLS:
        if re.match(pattern, url):
            raise InvalidValue(f"the URL {why}", member="url")
    authority = _AUTHORITY.match(url)
    if authority is None or int(authority["port"] or 80) > PORT_MAX or not _is_canonical(authority["host"]):
        text = (
            "the URL has a host or port that curl cannot read, or would change: write host and port in their usual form"
        )
        raise InvalidValue(text, member="url")


def _is_canonical(host: str) -> bool:
    """Return whether curl leaves `host` unchanged. It changes the form of some IP addresses."""
    try:
        if host.startswith("["):
            return host == f"[{socket.inet_ntop(socket.AF_INET6, socket.inet_pton(socket.AF_INET6, host[1:-1]))}]"
        return not _NUMBER_LAST.fullmatch(host) or host == str(ipaddress.IPv4Address(host))
    except (OSError, ValueError):
        return False


def curl_command(request: RequestMessage, *, body_file: str | None = None) -> str:
    """Return a command of several lines, without a newline at its end, to paste or pipe into a shell.

    Check the URL with `check_url` first. Header values are the bytes of UTF-8 as latin-1 text. `body_file` is the name
    of a file with the body. If it is `None`, the command contains the body. Raises `InvalidValue` when the body is too
    large for a command.

    >>> print(curl_command(RequestMessage("POST", "http://bank.example/?q=1", (("X-A", "it's"),), b'{"a": 1}')))
    curl -sS -X POST 'http://bank.example/?q=1' \\
      -H 'X-A: it'"'"'s' \\
      --data-raw '{"a": 1}'
    """
    first = ["curl", "-sS", *_url_options(request.target_uri), *_method(request.method), request.target_uri]
    fields = [["-H", _field(name, value)] for name, value in request.headers if not _made_by_curl(name, request)]
    before, body = _body(request.body, body_file)
    return before + " \\\n  ".join(map(shlex.join, [first, *fields, *body]))


def _url_options(url: str) -> list[str]:
    options = []
    if _DOT_SEGMENT.search(url.partition("?")[0]):
        options.append("--path-as-is")
    if not set("[]{}").isdisjoint(url):
        options.append("--globoff")
    return options


def _method(method: str) -> list[str]:
    return ["--head"] if method == "HEAD" else ["-X", method]  # with -X HEAD, curl waits for a body


def _made_by_curl(name: str, request: RequestMessage) -> bool:
    return bool(request.body) and name.lower() == "content-length"


def _field(name: str, value: str) -> str:
    # For an empty value, the form `X-A:` would make curl leave out the field.
    return f"{name}: {value.encode('latin-1').decode('utf-8')}" if value else f"{name};"


def _body(content: bytes, file: str | None) -> tuple[str, list[list[str]]]:
    """Return the text before the command, and the options for the body."""
    if not content:
        return "", []
    if file is not None:
        return "", [["--data-binary", f"@{file}"]]
    if len(content) > COMMAND_BODY_BYTES_MAX:
        text = f"a body of more than {COMMAND_BODY_BYTES_MAX} bytes is too long for a command: put it in a file"
        raise InvalidValue(text, member="body")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if all(character.isprintable() or character == "\n" for character in text):
        return "", [["--data-raw", text]]  # not --data, which reads a file if the text begins with @
    # printf makes special characters from octal digits, because in a pasted command a tab would complete a word, and a
    # NUL would end an argument.
    octal = "".join([chr(byte) if byte in _PLAIN else f"\\{byte:03o}" for byte in content])
    return f"printf '{octal}' |\n", [["--data-binary", "@-"]]
