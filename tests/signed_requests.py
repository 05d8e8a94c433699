"""Requests for the tests of signatures: what clients send, and what somebody with a key and bad intentions sends."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from attrs import evolve
from http_sf import ser

from incoming_payments.httpsig import PrivateKey, Request, load_private_jwk, sign

NOW: Final = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)
NOW_S: Final = int(NOW.timestamp())
URL: Final = "https://ase.example/incoming-payments"
BODY: Final = b'{"walletAddress":"https://ase.example/alice"}'


def _key(kid: str, d: str, x: str) -> PrivateKey:
    return load_private_jwk({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "kid": kid, "d": d, "x": x})


# RFC 8032 §7.1, tests 1 and 2
KEY: Final = _key("key-1", "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A", "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo")
OTHER: Final = _key(
    "key-2", "TM0Imyj_ltqdtsNG7BFOD1uKMZ81q6Yk2oz27U-4pvs", "PUAXw-hDiVqStwqnTRt-vJyYLM8uxJaMwM1V8Sr0Zgw"
)
KEYS: Final = {"key-1": KEY.public_key()}


def get(*headers: tuple[str, str], url: str = URL) -> Request:
    """An unsigned GET with a token, as the Node client builds it, and `headers`."""
    return Request("GET", url, (("Authorization", "GNAP token"), *headers))


def post(*headers: tuple[str, str], body: bytes = BODY) -> Request:
    """An unsigned POST with a token, as the Node client builds it, and `headers`."""
    framing = (("Content-Type", "application/json"), ("Content-Length", str(len(body))))
    return Request("POST", URL, (("Authorization", "GNAP token"), *framing, *headers), body)


def signed_get() -> Request:
    """A GET as the Node client signs it."""
    return sign(get(), KEY, created=NOW)


def signed_post() -> Request:
    """A POST as the Node client signs it."""
    return sign(post(), KEY, created=NOW)


def put(request: Request, name: str, *values: str) -> Request:
    """`request` with the field `name` replaced by one line for each of `values`; none of them removes it."""
    others = tuple(header for header in request.headers if header[0].lower() != name.lower())
    return evolve(request, headers=(*others, *((name, value) for value in values)))


def replace(request: Request, name: str, old: str, new: str) -> Request:
    """`request` with `old` exchanged for `new` in the field `name`."""
    (value,) = request.values(name.lower())
    assert old in value, f"{old!r} is not in {value!r}"
    return put(request, name, value.replace(old, new))


def forge(
    request: Request,
    lines: Iterable[tuple[str, str]],
    params: str = f';keyid="key-1";created={NOW_S}',
    *,
    key: PrivateKey = KEY,
    label: str = "sig1",
) -> Request:
    """`request` with a signature over exactly `lines`, each a component identifier and the value the signer gives it.

    It shares nothing with the library but the raw signature, so that it can sign what the library would not.
    """
    pairs = list(lines)
    inner_list = f"({' '.join(identifier for identifier, _ in pairs)}){params}"
    base = "".join(f"{identifier}: {value}\n" for identifier, value in pairs) + f'"@signature-params": {inner_list}'
    signature = ser(key.sign(base.encode()))
    fields = (("Signature-Input", f"{label}={inner_list}"), ("Signature", f"{label}={signature}"))
    return evolve(request, headers=(*request.headers, *fields))


def get_lines(url: str = URL, token: str = "GNAP token") -> list[tuple[str, str]]:  # noqa: S107 - a made-up token
    """What has to be covered of `get()`."""
    return [('"@method"', "GET"), ('"@target-uri"', url), ('"authorization"', token)]
