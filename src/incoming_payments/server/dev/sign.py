"""`incoming-payments sign`: print a signed request as a command, to try a server by hand."""

import argparse
import json
import os
import re
import secrets
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, get_args

from attrs import frozen

from incoming_payments.errors import ConfigurationError, InvalidValue, MalformedField, MalformedKey
from incoming_payments.flows.idempotency import IDEMPOTENCY_KEY
from incoming_payments.flows.policy import COLLECTION_PATH
from incoming_payments.gnap.token import AccessToken
from incoming_payments.httpsig import Algorithm, Component, PrivateKey, RequestMessage, content_digest, load_jwk, sign
from incoming_payments.httpsig.digest import DigestAlgorithm
from incoming_payments.httpsig.fields import POSIX_TIME_MAX, parse_signature_input
from incoming_payments.httpsig.sign import default_components
from incoming_payments.limits import KEY_ID_CHARS_MAX, NONCE_CHARS_MAX, SIGNED_BODY_BYTES_MAX
from incoming_payments.ports.clock import utc_now
from incoming_payments.server.config.access import ConfiguredToken
from incoming_payments.server.config.settings import Settings, load_settings
from incoming_payments.server.dev.curl import check_url, curl_command

_METHOD: Final = re.compile(r"(?!CONNECT$)[A-Z][A-Z0-9_\-]*")
_WITH_BODY: Final = ("POST", "PUT", "PATCH")
_FIELD_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TAG: Final = re.compile(rf"[ -~]{{1,{NONCE_CHARS_MAX}}}")
_MADE: Final = {"content-length", "content-digest", "transfer-encoding"}

_DESCRIPTION: Final = """\
Sign a request, and print the curl command that sends it: paste it into a shell, or pipe it into `sh`.

The key and the token come from the first [[token]] in the configuration. The private key is in the file that has the
name of jwk_file and the ending .pem, as `init` writes it. If there is no configuration, give --key, --key-id and
--token. The command contains the access token, so keep the command secret. The private key is never printed. A service
accepts a signature for some minutes only (signature_age_s). After that time, sign again.
"""


def add_parser(commands: Any, configuration: str) -> None:
    """Add `sign` to the subcommands. `configuration` is the default of `--config`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "sign",
        help="sign a request, and print the curl command that sends it",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("method", metavar="METHOD", help="the method in upper case, such as GET or POST")
    add("url", metavar="URL", help="base_url of the service, and a path")
    add("--data", metavar="BODY", help="the body; @FILE sends the content of a file, and @- sends standard input")
    add("--header", metavar="'NAME: VALUE'", action="append", default=[], help="add a header field; may be repeated")
    add(
        "--format",
        choices=_FORMATS,
        default="curl",
        help="print a curl command, only the header fields, or the HTTP/1.1 request",
    )
    key = parser.add_argument_group("key and token")
    default = f"the configuration (default: {configuration})"
    key.add_argument("--config", metavar="FILE", type=Path, default=Path(configuration), help=default)
    key.add_argument(
        "--key", metavar="FILE", type=Path, help="the file with the private key, in PEM without a password"
    )
    key.add_argument(
        "--key-id", metavar="KID", help="the kid in the JWK of the key, which the signature names as keyid"
    )
    token = key.add_mutually_exclusive_group()
    token.add_argument("--token", help="the access token")
    token.add_argument("--no-token", action="store_true", help="send no Authorization field")
    key.add_argument(
        "--algorithm", choices=[each.value for each in Algorithm], help="the signature algorithm for an RSA key"
    )
    signature = parser.add_argument_group("signature")
    cover = "also cover this component, such as @query, x-a, or 'x-a;bs' with a parameter; may be repeated"
    signature.add_argument("--cover", metavar="COMPONENT", action="append", default=[], help=cover)
    signature.add_argument("--only", action="store_true", help="cover only the components of --cover")
    signature.add_argument(
        "--nonce", action="store_true", help="add a random nonce, so that a service accepts the request only once"
    )
    signature.add_argument(
        "--created", metavar="TIME", type=int, help="the time of the signature, in seconds since 1970 (default: now)"
    )
    signature.add_argument(
        "--expires", metavar="SECONDS", type=int, help="how many seconds after its created time the signature expires"
    )
    signature.add_argument("--label", default="sig1", help="the signature's label (default: sig1)")
    signature.add_argument("--tag", help="the value of the signature parameter tag")
    signature.add_argument("--alg", action="store_true", help="add the signature parameter alg")
    signature.add_argument(
        "--digest",
        choices=get_args(DigestAlgorithm),
        default="sha-512",
        help="the digest algorithm for the body (default: sha-512)",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if not _METHOD.fullmatch(options.method):
        text = f"{_shown(options.method)} cannot be signed: give GET, POST or another method in upper case"
        raise _wrong("METHOD", text)
    check_url(options.url)
    if options.data is None and options.method == "POST" and f"{COLLECTION_PATH}/" in options.url.partition("?")[0]:
        options.data = ""
    given = [_header(text) for text in options.header]
    key, token = _credentials(options, has_authorization=any(name.lower() == "authorization" for name, _ in given))
    body = _body(options)
    headers = _headers(given, token, body.content, options)
    request = RequestMessage(options.method, options.url, tuple(headers), body.content)
    signed = _sign(request, key, options)
    output = _FORMATS[options.format](signed, body.file)
    _warn_of_body(options.data, body.content, headers)
    sys.stdout.buffer.write(output)
    sys.stdout.flush()
    return 0


def _wrong(option: str, text: str) -> ConfigurationError:
    return ConfigurationError(text, setting=option)


def _warn(text: str) -> None:
    print(f"incoming-payments: warning: {text}", file=sys.stderr)


def _shown(text: str) -> str:
    """Return an argument in quotes and on one line, shortened if it is long."""
    return repr(text if len(text) <= 64 else f"{text[:61]}...")


# --- the request ---------------------------------------------------------------------------------


@frozen
class _Body:
    content: bytes = b""
    file: str | None = None  # the file from which curl can read the body


def _body(options: argparse.Namespace) -> _Body:
    data: str | None = options.data
    if data is None:
        if options.method in _WITH_BODY:
            text = f"{options.method} needs --data: give the body, @FILE or @-, or --data '' for an empty body"
            raise _wrong("--data", text)
        return _Body()
    if options.method == "HEAD" and data:
        raise _wrong("--data", "HEAD has no body: leave out --data")
    if data == "@-":
        if sys.stdin is None or sys.stdin.isatty():  # `sys.stdin` is `None` if standard input is closed
            text = (
                "--data @- reads standard input, but standard input is a terminal or closed: pipe the body in, "
                "or give a file"
            )
            raise _wrong("--data", text)
        return _Body(_bounded(sys.stdin.buffer.read(SIGNED_BODY_BYTES_MAX + 1)))
    if data.startswith("@"):
        return _body_in(data[1:])
    return _Body(os.fsencode(data))


def _body_in(name: str) -> _Body:
    if not name.isprintable():
        raise _wrong("--data", f"--data: curl cannot read a file with the name {_shown(name)}: rename the file")
    try:
        with open(name, "rb") as file:
            content = _bounded(file.read(SIGNED_BODY_BYTES_MAX + 1))
            again = stat.S_ISREG(os.fstat(file.fileno()).st_mode)  # a pipe can be read only once
    except OSError as error:
        raise _wrong(
            "--data", f"--data @{name} cannot be read ({error.strerror or error}): give another file"
        ) from None
    return _Body(content, name if again else None)


def _bounded(content: bytes) -> bytes:
    if len(content) > SIGNED_BODY_BYTES_MAX:
        raise _wrong("--data", f"--data: the body is longer than {SIGNED_BODY_BYTES_MAX} bytes: give a shorter one")
    return content


def _warn_of_body(data: str | None, content: bytes, headers: list[tuple[str, str]]) -> None:
    """Warn of a body that should be JSON but is not. Such a body is still signed, so that you can test the refusal."""
    kinds = [value for name, value in headers if name.lower() == "content-type"]
    if not content or kinds != ["application/json"]:
        return
    try:
        json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        is_file = data is not None and not data.startswith("@") and os.path.isfile(data)
        how = f"write --data @{data} for the file of this name" if is_file else "the service would refuse this body"
        _warn(f"--data is not JSON ({error}): {how}")


def _header(text: str) -> tuple[str, str]:
    """Return name and value of a `--header`. The value is text whose latin-1 form is the bytes of the field."""
    name, colon, value = text.partition(":")
    if not colon or not _FIELD_NAME.fullmatch(name):
        raise _wrong("--header", f"--header {_shown(text)} must be of the form 'Name: value'")
    if name.lower() in _MADE:
        raise _wrong("--header", f"--header: sign computes {name} itself: leave out this field")
    if not value.isprintable():
        raise _wrong("--header", f"--header: the value of {name} must be printable characters, on one line")
    return name, value.strip().encode("utf-8").decode("latin-1")


def _headers(
    given: list[tuple[str, str]], token: AccessToken | None, content: bytes, options: argparse.Namespace
) -> list[tuple[str, str]]:
    headers = [("Authorization", f"GNAP {token.value}")] if token else []
    if content and not any(name.lower() == "content-type" for name, _ in given):
        headers.append(("Content-Type", "application/json"))
    headers += given
    if options.data is not None:
        headers.append(("Content-Length", f"{len(content)}"))
    if content:
        headers.append(("Content-Digest", content_digest(content, options.digest)))
    return headers


# --- key and token -----------------------------------------------------------------------------------


def _credentials(options: argparse.Namespace, *, has_authorization: bool) -> tuple[PrivateKey, AccessToken | None]:
    """Return the key and the token, or `None` if no token is sent.

    Values that no option gives come from the configuration.
    """
    algorithm = Algorithm(options.algorithm) if options.algorithm else None
    needs_token = not (has_authorization or options.no_token)
    token = _token(options.token) if options.token is not None and needs_token else None
    if options.key and options.key_id and (token or not needs_token):
        return _key(options.key, options.key_id, algorithm), token
    configured = _configured(options, token)
    public = load_jwk(configured.info.jwk or {})
    key_id = options.key_id or public.kid
    if options.key:
        key = _key(options.key, key_id, algorithm)
    else:
        key = _configured_key(configured, key_id, algorithm or public.algorithm)
    expires_at = configured.info.expires_at
    if needs_token and token in (None, configured.value) and expires_at is not None and expires_at <= utc_now():
        _warn(f"the token has expired (expires_at in {options.config}), so the service would refuse it")
    return key, (token or configured.value) if needs_token else None


def _token(text: str) -> AccessToken:
    try:
        return AccessToken(text)
    except InvalidValue as error:
        raise _wrong("--token", f"--token: {error.description}; give only the token, without the word GNAP") from None


def _configured(options: argparse.Namespace, token: AccessToken | None) -> ConfiguredToken:
    """Return the `[[token]]` with the given token, or else the first `[[token]]`."""
    path: Path = options.config
    instead = "give --key, --key-id and --token"
    if not os.path.exists(path):  # this function raises no error, unlike `Path.exists`
        raise _wrong("--config", f"{path} does not exist: give another file with --config, or {instead}")
    settings = load_settings(path)
    if not settings.tokens:
        raise _wrong("--config", f"{path} has no [[token]] to sign with: add one, or {instead}")
    _warn_of_url(options.url, settings, path)
    return next((entry for entry in settings.tokens if entry.value == token), settings.tokens[0])


def _warn_of_url(url: str, settings: Settings, path: Path) -> None:
    base_url = settings.policy.base_url
    if not url.startswith(f"{base_url}/"):
        _warn(f"the URL is not below {base_url}, the base_url in {path}, so the service would refuse the signature")


def _configured_key(configured: ConfiguredToken, key_id: str, algorithm: Algorithm) -> PrivateKey:
    path = configured.jwk_file.with_suffix(".pem")
    key = _key(path, key_id, None)
    public = {name: value for name, value in key.public_jwk().items() if name not in ("kid", "alg")}
    if not public.items() <= (configured.info.jwk or {}).items():
        raise _wrong(
            "--key",
            f"{path} is not the private key of {configured.jwk_file}: give the file of the private key with --key",
        )
    return _key(path, key_id, algorithm)


def _key(path: Path, key_id: str, algorithm: Algorithm | None) -> PrivateKey:
    try:
        pem = path.read_bytes()
    except OSError as error:
        why = error.strerror or error
        raise _wrong("--key", f"{path}: the private key cannot be read ({why}): give its file with --key") from None
    if b"PRIVATE KEY-----" not in pem:
        raise _wrong("--key", f"{path} is not a private key in PEM, which begins with -----BEGIN PRIVATE KEY-----")
    if b"ENCRYPTED PRIVATE KEY-----" in pem or b",ENCRYPTED" in pem:
        text = f"{path} is encrypted: remove the password with `openssl pkey -in ENCRYPTED.pem -out PLAIN.pem`"
        raise _wrong("--key", text)
    try:
        return PrivateKey.from_pem(pem, kid=key_id, algorithm=algorithm)
    except MalformedKey as error:
        raise _key_error(path, algorithm, error) from None


def _key_error(path: Path, algorithm: Algorithm | None, error: MalformedKey) -> ConfigurationError:
    member = error.details.get("member")
    if member == "kid":
        return _wrong("--key-id", f"--key-id must be 1 to {KEY_ID_CHARS_MAX} printable ASCII characters")
    if member == "alg":
        so = f"with {algorithm.value}" if algorithm else "here"
        kinds = "Ed25519 signs with EdDSA, P-256 with ES256, P-384 with ES384, and RSA with the other algorithms"
        return _wrong("--algorithm", f"{path}: a key of this type cannot sign {so}: {kinds}")
    if member is None:
        return _wrong(
            "--key", f"{path} cannot be read as a private key: check that the file is complete, and in PKCS #8"
        )
    return _wrong("--key", f"{path} cannot be used: {error.description}")


# --- the signature -------------------------------------------------------------------------------


def _sign(request: RequestMessage, key: PrivateKey, options: argparse.Namespace) -> RequestMessage:
    if options.tag is not None and not _TAG.fullmatch(options.tag):
        raise _wrong("--tag", f"--tag must be 1 to {NONCE_CHARS_MAX} printable ASCII characters")
    keys = [name for name in (IDEMPOTENCY_KEY,) if request.values(name)]
    always = () if options.only else map(Component, (*default_components(request), *keys))
    created = int(utc_now().timestamp()) if options.created is None else options.created
    expires = None if options.expires is None else created + options.expires
    for option, time in (("--created", created), ("--expires", expires)):
        if time is not None and not 0 <= time <= POSIX_TIME_MAX:
            raise _wrong(
                option, f"{option} gives a time outside the years 1970 to 9999: give another number of seconds"
            )
    components = list(dict.fromkeys([*always, *map(_component, options.cover)]))
    try:
        return sign(
            request,
            key,
            created=created,
            components=components,
            label=options.label,
            expires=expires,
            nonce=secrets.token_urlsafe(16) if options.nonce else None,
            tag=options.tag,
            alg_param=options.alg,
            digest=None,
        )
    except MalformedField as error:
        if "component" not in error.details:
            raise
        raise _wrong("--cover", f"--cover: {error.description}") from None


def _component(text: str) -> Component:
    """Parse a component identifier. Its quotes may be missing, because shells remove quotes."""
    name, semicolon, parameters = text.partition(";")
    identifier = text if text.startswith('"') else f'"{name}"{semicolon}{parameters}'
    try:
        [read] = parse_signature_input([f"c=({identifier})"]).values()
        [component] = () if read.parameters else read.components
    except (MalformedField, ValueError):  # a ValueError means more than one component
        how = f"--cover {_shown(text)} is not a component: write a component such as @query, x-a or 'x-a;bs'"
        raise _wrong("--cover", how) from None
    return component


# --- output -----------------------------------------------------------------------------


def _curl(request: RequestMessage, file: str | None) -> bytes:
    return f"{curl_command(request, body_file=file)}\n".encode()


def _fields(request: RequestMessage, _file: str | None) -> bytes:
    return "".join([f"{name}: {value}\n" for name, value in request.headers]).encode("latin-1")


def _http(request: RequestMessage, _file: str | None) -> bytes:
    target = request.target
    lines = [f"{request.method} {target.path}{target.query or ''} HTTP/1.1"]
    more = (("Host", target.authority), ("Connection", "close"))
    headers = [field for field in more if not request.values(field[0].lower())] + list(request.headers)
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + request.body


_FORMATS: Final[Mapping[str, Callable[[RequestMessage, str | None], bytes]]] = {
    "curl": _curl,
    "headers": _fields,
    "http": _http,
}
