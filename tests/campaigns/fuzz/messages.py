"""Requests made from bytes, for the fuzz targets, and a second, simple verification of their signatures.

A fuzzer mutates a script: pieces with 0x1E between them. The first piece chooses the request to begin with, and each
other piece is one change. Some changes sign with keys that the verifier knows. A good signature covers the changes
before it; a change after it is tampering.

Apart from http_sf and cryptography, this module shares no code with the verifier, and it has no fast paths.
"""

import hashlib
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final, TypeVar, cast
from urllib.parse import quote, unquote_to_bytes

import http_sf
from attrs import define, evolve, field, frozen
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from http_sf.retrofit import retrofit

from kits.signed_requests import NOW, NOW_S
from kits.signing_keys import rsa_key

SEPARATOR: Final = b"\x1e"
SIGNED_AT_ONCE_MAX: Final = 5  # one more than the verifier checks
_NO_SIGNATURE: Final = bytes(64)
Headers = list[tuple[str, str]]
Text = TypeVar("Text", str, bytes)


# --- keys, without the library -----------------------------------------------------------------


@frozen
class Signer:
    """A key pair of cryptography's, used as RFC 9421 §3.3 says."""

    kid: str
    alg: str
    private: Any

    def sign(self, data: bytes) -> bytes:
        """Return the signature over `data`, in the form of RFC 9421 §3.3."""
        if isinstance(self.private, ed25519.Ed25519PrivateKey):
            return self.private.sign(data)
        if isinstance(self.private, rsa.RSAPrivateKey):
            return self.private.sign(data, _PSS, hashes.SHA512())
        octets = self.private.key_size // 8
        return b"".join([n.to_bytes(octets) for n in decode_dss_signature(self.private.sign(data, self._ecdsa()))])

    def holds(self, signature: bytes, data: bytes) -> bool:
        """Return whether `signature` is a signature by this key over `data`."""
        public = self.private.public_key()
        try:
            if isinstance(public, ed25519.Ed25519PublicKey):
                public.verify(signature, data)
            elif isinstance(public, rsa.RSAPublicKey):
                public.verify(signature, data, _PSS, hashes.SHA512())
            else:
                octets = public.key_size // 8
                if len(signature) != 2 * octets:
                    return False
                r, s = int.from_bytes(signature[:octets]), int.from_bytes(signature[octets:])
                public.verify(encode_dss_signature(r, s), data, self._ecdsa())
        except InvalidSignature:
            return False
        return True

    def _ecdsa(self) -> ec.ECDSA:
        return ec.ECDSA(hashes.SHA256() if self.private.key_size == 256 else hashes.SHA384())


_PSS: Final = padding.PSS(padding.MGF1(hashes.SHA512()), salt_length=64)


def _ed25519(seed: str) -> ed25519.Ed25519PrivateKey:
    return ed25519.Ed25519PrivateKey.from_private_bytes(bytes.fromhex(seed))


@cache
def signers() -> Mapping[str, Signer]:
    """Return the signers by `keyid`. The first two keys are those of RFC 8032 §7.1; only the RSA key differs by run."""
    made = (
        Signer("key-1", "ed25519", _ed25519("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")),
        Signer("key-2", "ed25519", _ed25519("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")),
        Signer("p-256", "ecdsa-p256-sha256", ec.derive_private_key(0xA5E256, ec.SECP256R1())),
        Signer("p-384", "ecdsa-p384-sha384", ec.derive_private_key(0xA5E384, ec.SECP384R1())),
        Signer("rsa", "rsa-pss-sha512", rsa_key()),
    )
    return {signer.kid: signer for signer in made}


# --- a request under construction -------------------------------------------------------------------


@define
class Draft:
    """A request that is being changed. `prefix` and `target` together are its target URI."""

    method: str = "GET"
    prefix: str = ""
    target: str = ""
    headers: Headers = field(factory=list)
    body: bytes = b""
    now: datetime = NOW

    @property
    def uri(self) -> str:
        """Return the target URI, as the service sees it."""
        return self.prefix + self.target

    def values(self, name: str) -> list[str]:
        """Return the values of the field lines called `name`, given in lower case."""
        return [value for line, value in self.headers if line.lower() == name]


@frozen
class Setting:
    """The setting of a script: how bytes become text, and the parts of the honest requests."""

    text: Callable[[bytes], str]
    prefix: str
    target: str
    token: str
    body: bytes


def _nothing(setting: Setting) -> Draft:
    return Draft(prefix=setting.prefix)


def _get(setting: Setting) -> Draft:
    return Draft("GET", setting.prefix, setting.target, [("Authorization", f"GNAP {setting.token}")])


def _post(setting: Setting) -> Draft:
    headers = [
        ("Authorization", f"GNAP {setting.token}"),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(setting.body))),
        ("Content-Digest", f"sha-512={byte_sequence(hashlib.sha512(setting.body).digest())}"),
    ]
    return Draft("POST", setting.prefix, setting.target, headers, setting.body)


def byte_sequence(octets: bytes) -> str:
    """Return the octets in the form of RFC 9651 §4.1.8."""
    return f":{b64encode(octets).decode()}:"


_BEGINNINGS: Final = (_nothing, _get, _post)


def build(data: bytes, setting: Setting) -> tuple[Draft, int]:
    """Return the request that the script `data` makes, and the number by which it chooses a policy."""
    head, *changes = data.split(SEPARATOR)
    begin = _BEGINNINGS[((head[0] if head else 0) - ord("0")) % len(_BEGINNINGS)]
    draft = begin(setting)
    for change in changes:
        act = _CHANGES.get(change[:1])
        if act is not None:
            act(draft, change[1:], setting)
    return draft, (head[1] if len(head) > 1 else 0) - ord("0")


def script(begin: int, policy: int, *changes: bytes) -> bytes:
    """Return a script. `begin` is 0 for nothing, 1 for an honest GET and 2 for an honest POST, both unsigned."""
    return SEPARATOR.join([b"%d%d" % (begin, policy), *changes])


def script_of(method: str, target: str, headers: Headers, body: bytes, *, policy: int = 0) -> bytes:
    """Return the script that makes this request. Raise `UnicodeError` or `ValueError` if there is none."""
    lines = [f"h{name}:{value}" for name, value in headers]
    changes = [text.encode("latin-1") for text in (f"m{method}", f"u{target}", *lines)]
    if SEPARATOR in b"".join([*changes, body]):
        raise ValueError("a separator within a piece")
    return script(0, policy, *changes, *([b"b" + body] if body else []))


# --- the changes, each by its letter -----------------------------------------------------------


def _set_method(draft: Draft, payload: bytes, setting: Setting) -> None:
    draft.method = setting.text(payload)


def _set_target(draft: Draft, payload: bytes, setting: Setting) -> None:
    draft.target = setting.text(payload)


def _set_body(draft: Draft, payload: bytes, _: Setting) -> None:
    draft.body = payload


def _add_line(draft: Draft, payload: bytes, setting: Setting) -> None:
    name, _, value = setting.text(payload).partition(":")
    draft.headers.append((name, value))


def _set_line(draft: Draft, payload: bytes, setting: Setting) -> None:
    """Replace the value of the field line that the first byte chooses."""
    if payload and draft.headers:
        at = payload[0] % len(draft.headers)
        draft.headers[at] = (draft.headers[at][0], setting.text(payload[1:]))


def _drop_line(draft: Draft, payload: bytes, _: Setting) -> None:
    if payload and draft.headers:
        del draft.headers[payload[0] % len(draft.headers)]


def _splice(draft: Draft, payload: bytes, setting: Setting) -> None:
    """Replace some characters of one text. Three bytes choose the text, the position and the number."""
    if len(payload) < 3:
        return
    which, start, count = payload[0] % (len(draft.headers) + 3), payload[1], payload[2] % 16
    if which == 0:
        draft.body = _spliced(draft.body, start, count, payload[3:])
        return
    piece = setting.text(payload[3:])
    if which == 1:
        draft.method = _spliced(draft.method, start, count, piece)
    elif which == 2:
        draft.target = _spliced(draft.target, start, count, piece)
    else:
        name, value = draft.headers[which - 3]
        draft.headers[which - 3] = (name, _spliced(value, start, count, piece))


def _spliced(text: Text, start: int, count: int, piece: Text) -> Text:
    start %= len(text) + 1
    return text[:start] + piece + text[start + count :]


def _set_clock(draft: Draft, payload: bytes, _: Setting) -> None:
    """Move the clock by some milliseconds from the time at which honest requests are signed."""
    if re.fullmatch(rb"-?[0-9]{1,15}", payload):
        try:
            draft.now = NOW + timedelta(milliseconds=int(payload))
        except OverflowError:
            draft.now = NOW


def _digest(draft: Draft, payload: bytes, _: Setting) -> None:
    """Replace the digest by the right one for the current body."""
    name = "sha-256" if payload == b"sha-256" else "sha-512"
    value = f"{name}={byte_sequence(hashlib.new(name.replace('-', ''), draft.body).digest())}"
    draft.headers[:] = [line for line in draft.headers if line[0].lower() != "content-digest"]
    draft.headers.append(("Content-Digest", value))


def _sign(draft: Draft, payload: bytes, setting: Setting) -> None:
    """Sign with the key of the first byte, once for each member of the `Signature-Input` in the other bytes."""
    keys = list(signers().values())
    key = keys[payload[0] % len(keys)] if payload else keys[0]
    text = setting.text(payload[1:]) or honest_input(draft, key)
    draft.headers.append(("Signature-Input", text))
    given = list(signatures_of([text], []).items())[:SIGNED_AT_ONCE_MAX]
    signatures: dict[str, Any] = {label: (_signature(draft, key, member), {}) for label, member in given}
    if signatures:
        draft.headers.append(("Signature", http_sf.ser(signatures)))


def _signature(draft: Draft, key: Signer, given: "Given") -> bytes:
    base = signature_base(draft, given)
    return _NO_SIGNATURE if base is None else key.sign(base)


def _sign_as_rust(draft: Draft, payload: bytes, setting: Setting) -> None:
    """Sign as the Rust SDK does, with the key of the first byte and the `Signature-Input` in the other bytes."""
    keys = list(signers().values())
    key = keys[payload[0] % len(keys)] if payload else keys[0]
    text = setting.text(payload[1:]) or honest_input(draft, key).partition(";")[0].replace('"', "") + _honest(key)
    draft.headers.append(("Signature-Input", text))
    given = _unquoted(text, "")
    draft.headers.append(("Signature", b64encode(_signature(draft, key, given) if given else b"").decode()))


def _write_as_php(draft: Draft, _: bytes, __: Setting) -> None:
    """Write the signatures as the PHP SDK does."""
    draft.headers[:] = [
        (name, value.replace(":", "") if name.lower() == "signature" else value) for name, value in draft.headers
    ]


def honest_input(draft: Draft, key: Signer) -> str:
    """Return the `Signature-Input` by which `key` covers every possible component of `draft`."""
    names = ["@method", "@target-uri", *dict.fromkeys([name.lower() for name, _ in draft.headers])]
    covered = " ".join([f'"{name}"' for name in names if name not in {"signature", "signature-input"}])
    return f"sig1=({covered}){_honest(key)}"


def _honest(key: Signer) -> str:
    return f';created={NOW_S};keyid="{key.kid}"'


_CHANGES: Final[Mapping[bytes, Callable[[Draft, bytes, Setting], None]]] = {
    b"m": _set_method,
    b"u": _set_target,
    b"b": _set_body,
    b"h": _add_line,
    b"r": _set_line,
    b"d": _drop_line,
    b"e": _splice,
    b"c": _set_clock,
    b"g": _digest,
    b"s": _sign,
    b"x": _sign_as_rust,
    b"p": _write_as_php,
}


# --- the signature base, RFC 9421 §2.5, in the simplest form ----------------------------------------


@frozen
class Given:
    """A signature with its components and parameters, also in the form that is signed."""

    items: list[Any]
    parameters: Mapping[str, Any]
    signature_params: str
    signature: object = None


def signatures_of(inputs: Sequence[str], signatures: Sequence[str], *, shapes: bool = False) -> Mapping[str, Given]:
    """Return the signatures in these field lines by label. `shapes` also accepts the forms of two SDKs."""
    found = _dictionary(signatures)
    given = {
        label: Given(items, parameters, http_sf.ser([(items, parameters)]), found.get(label, (None, {}))[0])
        for label, (items, parameters) in _dictionary(inputs).items()
        if isinstance(items, list)
    }
    if shapes and len(inputs) == len(signatures) == 1:
        [line], [signature] = inputs, signatures
        label = line.partition("=")[0]
        if (octets := _base64(signature)) is not None and (unquoted := _unquoted(line, octets)):
            return {label: unquoted}
        if signature.startswith(f"{label}=") and (octets := _base64(signature[len(label) + 1 :])) and label in given:
            return {label: evolve(given[label], signature=octets)}
    return given


def _base64(text: str) -> bytes | None:
    try:
        octets = b64decode(text, validate=True)
    except ValueError:
        return None
    return octets if b64encode(octets).decode() == text else None


def _unquoted(line: str, signature: object) -> Given | None:
    """Read the form of the Rust SDK: component names are written and signed without quotes."""
    signature_params = line.partition("=")[2]
    names, parenthesis, parameters = signature_params.removeprefix("(").partition(")")
    quoted = _dictionary([f"x=(){parameters}"])
    if not parenthesis or '"' in names or list(quoted) != ["x"]:
        return None
    return Given([(name, {}) for name in names.split(" ")], quoted["x"][1], signature_params, signature)


def _dictionary(lines: Sequence[str]) -> dict[str, Any]:
    try:
        return cast("dict[str, Any]", http_sf.parse(", ".join(lines).encode("ascii"), tltype="dictionary"))
    except (http_sf.StructuredFieldError, UnicodeEncodeError):
        return {}


def signature_base(draft: Draft, given: Given) -> bytes | None:
    """Return the signature base, or None if a component has no value."""
    try:
        lines = [f"{http_sf.ser([item])}: {_value(draft, *item)}\n" for item in given.items]
        return f'{"".join(lines)}"@signature-params": {given.signature_params}'.encode("ascii")
    except (LookupError, ValueError, http_sf.StructuredFieldError):  # UnicodeError is a ValueError
        return None


def _value(draft: Draft, name: object, parameters: Mapping[str, Any]) -> str:
    if type(name) is not str:
        raise LookupError(name)
    if name.startswith("@"):
        return _derived(draft, name, parameters)
    lines = [re.sub(r"[ \t]*\r\n[ \t]+", " ", line).strip(" \t") for line in draft.values(name)]
    if not lines:
        raise LookupError(name)
    if "bs" in parameters:
        return ", ".join([byte_sequence(line.encode("latin-1")) for line in lines])
    joined = ", ".join(lines)
    if not parameters:
        return joined
    kind = _KINDS.get(name) or retrofit[name]
    structure: Any = http_sf.parse(joined.encode("ascii"), tltype=kind)
    if "key" in parameters:
        if not isinstance(structure, dict):
            raise LookupError(name)
        structure = [structure[parameters["key"]]]
    return http_sf.ser(structure) if structure or kind == "item" else ""


_KINDS: Final = {"content-digest": "dictionary", "signature": "dictionary", "signature-input": "dictionary"}


def _derived(draft: Draft, name: str, parameters: Mapping[str, Any]) -> str:
    scheme, _, rest = draft.uri.partition("://")
    at = min([place for place in (rest.find("/"), rest.find("?")) if place >= 0], default=len(rest))
    host, target = rest[:at].lower(), rest[at:]
    path, mark, query = target.partition("?")
    default = ":443" if scheme.lower() == "https" else ":80"
    if name == "@query-param":
        return _query_param(query, parameters["name"])
    return {
        "@method": draft.method,
        "@target-uri": draft.uri,
        "@authority": host.removesuffix(default).removesuffix(":"),
        "@scheme": scheme.lower(),
        "@request-target": (path or "/") + mark + query,
        "@path": path or "/",
        "@query": f"?{query}",
    }[name]


def _query_param(query: str, wanted: object) -> str:
    pairs = [pair.partition("=") for pair in query.split("&") if pair]
    [value] = [_encoded(value) for name, _, value in pairs if _encoded(name) == wanted]
    return value


def _encoded(text: str) -> str:
    decoded = unquote_to_bytes(text.replace("+", " "))
    return quote(decoded.decode(), safe="*").replace("~", "%7E")


# --- the second verification -------------------------------------------------------------------


@frozen
class Requirements:
    """The requirements of a policy."""

    required: tuple[str, ...]
    max_age_s: int
    clock_skew_s: int
    nonce_required: bool
    tag: str | None
    shapes: bool


def received(draft: Draft, requirements: Requirements) -> Mapping[str, Given]:
    """Return the signatures of `draft` by label."""
    return signatures_of(draft.values("signature-input"), draft.values("signature"), shapes=requirements.shapes)


def faults(draft: Draft, given: Given, requirements: Requirements, kids: Collection[str]) -> Iterator[str]:
    """Yield the faults of one signature of `draft`. A verifier may accept it only if there are none."""
    kid = given.parameters.get("keyid")
    signer = signers()[kid] if isinstance(kid, str) and kid in kids else None
    base = signature_base(draft, given)
    if signer is None or base is None or not isinstance(given.signature, bytes):
        yield "the key is unknown, or a component is absent"
        return
    if not signer.holds(given.signature, base):
        yield "the signature is wrong"
    if given.parameters.get("alg", signer.alg) != signer.alg:
        yield "alg differs"
    yield from _not_covered(draft, given.items, requirements)
    yield from _out_of_time(draft, given.parameters, requirements)
    if requirements.nonce_required and "nonce" not in given.parameters:
        yield "the nonce is missing"
    if requirements.tag is not None and given.parameters.get("tag") != requirements.tag:
        yield "tag differs"


def _not_covered(draft: Draft, items: list[Any], requirements: Requirements) -> Iterator[str]:
    plain = {name for name, parameters in items if not parameters}
    for name in (*requirements.required, *(["content-digest"] if draft.body else [])):
        if name not in plain:
            yield f"{name} is not covered"
    if len({http_sf.ser([item]) for item in items}) < len(items):
        yield "a component is covered twice"
    for name in ("authorization", "content-length", "content-type", "date", "host"):
        if any(item[0] == name for item in items) and len(draft.values(name)) != 1:
            yield f"{name} is absent or repeated"
    if "content-length" in plain and draft.values("content-length")[0].strip(" \t") != str(len(draft.body)):
        yield "Content-Length differs"
    if draft.body or draft.values("content-digest"):
        yield from wrong_digests(draft.values("content-digest"), draft.body)


def wrong_digests(lines: list[str], body: bytes) -> Iterator[str]:
    """Yield the reasons why a `Content-Digest` does not match `body`."""
    members = _dictionary(lines)
    known = {name: digest for name, (digest, _) in members.items() if name in {"sha-256", "sha-512"}}
    if not known:
        yield "the digest is missing"
    for name, digest in known.items():
        if digest != hashlib.new(name.replace("-", ""), body).digest():
            yield f"the {name} digest differs"


def _out_of_time(draft: Draft, parameters: Mapping[str, Any], requirements: Requirements) -> Iterator[str]:
    created, expires = parameters.get("created"), parameters.get("expires")
    if type(created) is not int:
        yield "created is missing"
        return
    age_s = draft.now.timestamp() - created
    if not -requirements.clock_skew_s <= age_s <= requirements.max_age_s:
        yield "the signature is not fresh"
    if expires is not None and not (type(expires) is int and created < expires >= draft.now.timestamp()):
        yield "the signature has expired"
