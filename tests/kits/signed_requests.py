"""Requests for the tests of signatures: as clients sign them, and as an attacker with a key signs them."""

from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from attrs import evolve, frozen
from http_sf import ser

from incoming_payments.httpsig import Algorithm, PrivateKey, RequestMessage, content_digest, load_private_jwk, sign
from kits.signing_keys import private

NOW: Final = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)
NOW_S: Final = int(NOW.timestamp())
URL: Final = "https://ase.example/incoming-payments"
BODY: Final = b'{"walletAddress":"https://ase.example/alice"}'

Lines = list[tuple[str, str]]  # of a signature base: a component identifier and its value


def _key(kid: str, d: str, x: str) -> PrivateKey:
    return load_private_jwk({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "kid": kid, "d": d, "x": x})


# RFC 8032 §7.1, tests 1 and 2
KEY: Final = _key("key-1", "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A", "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo")
OTHER: Final = _key(
    "key-2", "TM0Imyj_ltqdtsNG7BFOD1uKMZ81q6Yk2oz27U-4pvs", "PUAXw-hDiVqStwqnTRt-vJyYLM8uxJaMwM1V8Sr0Zgw"
)
KEYS: Final = {"key-1": KEY.public_key()}


@frozen(kw_only=True)
class Scene:
    """A client and a service: the URLs, the time, the tokens and the keys.

    The client reads `url`, and creates with `body` at `collection`. Both `tokens` are bound to `key`, and the client
    uses the first. A client with a key of another algorithm has a token named after that algorithm. `other` is the key
    of another client.
    """

    url: str = URL
    collection: str = URL
    body: bytes = BODY
    now: datetime = NOW
    tokens: tuple[str, str] = ("token", "other")
    key: PrivateKey = KEY
    other: PrivateKey = OTHER

    @property
    def now_s(self) -> int:
        """The time, in whole seconds."""
        return int(self.now.timestamp())

    @property
    def kid(self) -> str:
        """The `keyid` of a valid signature."""
        return self.key.kid

    @property
    def authorization(self) -> str:
        """The `Authorization` field of a valid request."""
        return f"GNAP {self.tokens[0]}"

    def by(self, algorithm: Algorithm) -> "Scene":
        """Return the scene of a client with a key for `algorithm`."""
        return evolve(self, key=private(algorithm), tokens=(algorithm.value, self.tokens[1]))

    # --- requests of a client ---

    def get(self, *headers: tuple[str, str], url: str | None = None) -> RequestMessage:
        """Return an unsigned GET with a token, as the Node client builds it, and `headers`."""
        return RequestMessage("GET", url or self.url, (("Authorization", self.authorization), *headers))

    def post(self, *headers: tuple[str, str], body: bytes | None = None) -> RequestMessage:
        """Return an unsigned POST with a token, as the Node client builds it, and `headers`."""
        body = self.body if body is None else body
        framing = (("Content-Type", "application/json"), ("Content-Length", str(len(body))))
        return RequestMessage(
            "POST", self.collection, (("Authorization", self.authorization), *framing, *headers), body
        )

    def signed_get(self, **options: Any) -> RequestMessage:
        """Return a GET as the Node client signs it. `options` go to `sign`."""
        return sign(self.get(), self.key, **{"created": self.now, **options})

    def signed_post(self, body: bytes | None = None, **options: Any) -> RequestMessage:
        """Return a POST as the Node client signs it. `options` go to `sign`."""
        return sign(self.post(body=body), self.key, **{"created": self.now, **options})

    # --- requests of an attacker ---

    def params(self, more: str = "", *, late_s: int = 0) -> str:
        """Return valid signature parameters, followed by `more`, with `created` `late_s` seconds ahead."""
        return f';keyid="{self.kid}";created={self.now_s + late_s}{more}'

    def lines(self, url: str | None = None, authorization: str | None = None) -> Lines:
        """Return the lines of the components of `get()` that a signature must cover."""
        return [
            ('"@method"', "GET"),
            ('"@target-uri"', url or self.url),
            ('"authorization"', self.authorization if authorization is None else authorization),
        ]

    def forge(
        self,
        request: RequestMessage,
        lines: Iterable[tuple[str, str]],
        params: str | None = None,
        *,
        by: Callable[[bytes], bytes] | None = None,
        label: str = "sig1",
    ) -> RequestMessage:
        """Return `request` with a signature over exactly `lines`, by `by` or else by the client's key.

        Only the raw signature comes from the library, so this can sign requests that the library refuses to sign.
        """
        pairs = list(lines)
        inner_list = f"({' '.join(identifier for identifier, _ in pairs)}){self.params() if params is None else params}"
        base = "".join(f"{identifier}: {value}\n" for identifier, value in pairs) + f'"@signature-params": {inner_list}'
        signature = ser((by or self.key.sign)(base.encode()))
        fields = (("Signature-Input", f"{label}={inner_list}"), ("Signature", f"{label}={signature}"))
        return evolve(request, headers=(*request.headers, *fields))

    def get_with(self, params: str) -> RequestMessage:
        """Return a GET with the signature parameters `params`."""
        return self.forge(self.get(), self.lines(), params)

    def get_by(self, by: Callable[[bytes], bytes], more: str = "") -> RequestMessage:
        """Return a GET whose signature is the result of `by` for the signature base."""
        return self.forge(self.get(), self.lines(), self.params(more), by=by)

    def get_covering(
        self, *lines: tuple[str, str], headers: Sequence[tuple[str, str]] = (), url: str = ""
    ) -> RequestMessage:
        """Return a GET with `headers` whose signature also covers `lines`, with the values given there."""
        return self.forge(self.get(*headers, url=url or self.url), [*self.lines(url or self.url), *lines])

    def meant_for(self, url: str) -> RequestMessage:
        """Return a GET that was signed for `url`, but is sent to the service."""
        return self.forge(self.get(), self.lines(url))

    def digested(
        self, *headers: tuple[str, str], body: bytes | None = None, digest: str | None = None
    ) -> RequestMessage:
        """Return an unsigned POST with `digest`, or else with the correct digest."""
        body = self.body if body is None else body
        return self.post(("Content-Digest", content_digest(body) if digest is None else digest), *headers, body=body)

    def post_covering(
        self, request: RequestMessage, *names: str, lines: Sequence[tuple[str, str]] = ()
    ) -> RequestMessage:
        """Return a POST that covers the required components, the fields `names`, and `lines`."""
        fields = [(f'"{name}"', ", ".join(request.values(name))) for name in ("authorization", *names)]
        return self.forge(request, [('"@method"', "POST"), ('"@target-uri"', self.collection), *fields, *lines])


SCENE: Final = Scene()
get, post, signed_get, signed_post = SCENE.get, SCENE.post, SCENE.signed_get, SCENE.signed_post
get_lines, forge = SCENE.lines, SCENE.forge


def put(request: RequestMessage, name: str, *values: str) -> RequestMessage:
    """Return `request` with one line of the field `name` for each of `values`, in place of its lines."""
    others = tuple(header for header in request.headers if header[0].lower() != name.lower())
    return evolve(request, headers=(*others, *((name, value) for value in values)))


def field(request: RequestMessage, name: str) -> str:
    """Return the single value of the field `name` (in lower case)."""
    (value,) = request.values(name)
    return value


def replace(request: RequestMessage, name: str, old: str, new: str) -> RequestMessage:
    """Return `request` with `old` replaced by `new` in the field `name`."""
    value = field(request, name.lower())
    assert old in value, f"{old!r} is not in {value!r}"
    return put(request, name, value.replace(old, new))


def both(first: RequestMessage, second: RequestMessage) -> RequestMessage:
    """Return `first` with the signatures of `second` after its own."""
    fields = [(name, value) for name, value in second.headers if name.startswith("Signature")]
    return evolve(first, headers=(*first.headers, *fields))


# --- the shapes of two SDKs ---


def php(request: RequestMessage) -> RequestMessage:
    """Return `request`, which is signed already, with its signature as the PHP SDK writes it: without colons."""
    (signature,) = request.values("signature")
    return put(request, "Signature", signature.replace(":", ""))


def rust(request: RequestMessage, *covered: str, written: str = f';created={NOW_S};keyid="key-1"') -> RequestMessage:
    """Sign `request` as the Rust SDK does: no quotes, not even in the signature base, no label and no colons."""
    names = ["@method", "@target-uri", "content-type", "authorization", *covered]
    derived = {"@method": request.method, "@target-uri": request.target_uri}
    params = f"({' '.join(names)}){written}"
    lines = [f'"{name}": {derived[name] if name in derived else request.values(name)[0]}' for name in names]
    signature = b64encode(KEY.sign("\n".join([*lines, f'"@signature-params": {params}']).encode())).decode()
    return put(put(request, "Signature-Input", f"sig1={params}"), "Signature", signature)


PHP_GET: Final = php(signed_get())
RUST_GET: Final = rust(get(("Content-Type", "application/json")))
