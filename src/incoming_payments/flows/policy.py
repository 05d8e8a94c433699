"""The settings of an ASE for its service, such as URLs and limits. The constructor checks the settings."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Literal, get_args
from urllib.parse import urlsplit

from attrs import Attribute, field, frozen

from incoming_payments import limits
from incoming_payments.domain.checks import instance, integer, name_of
from incoming_payments.domain.payment import PaymentId, payment_id
from incoming_payments.domain.urls import canonical_url, header_safe_url
from incoming_payments.errors import IncomingPaymentsError, InvalidValue, SignatureRefused
from incoming_payments.httpsig import Policy as SignaturePolicy

COLLECTION_PATH = "/incoming-payments"
Wording = Literal["plain", "web-monetization"]

# The descriptions that the browser extension of Web Monetization compares, by the code of the refusal.
_MATCHED: Final[Mapping[str, str]] = {
    "invalid_token": "Invalid Token",
    "token_expired": "Invalid Token",
    "insufficient_rights": "Insufficient Grant",
    "forbidden": "Insufficient Grant",
}
# the URL of a payment is up to 100 characters longer than the base URL
_BASE_URL_CHARS_MAX = limits.URL_CHARS_MAX - 100


def _base_url(url: str) -> str:
    canonical = canonical_url(url, member="base_url")
    if "?" in canonical:
        raise InvalidValue("base_url must not contain a query", member="base_url")
    if len(canonical) > _BASE_URL_CHARS_MAX:
        raise InvalidValue(f"base_url must have at most {_BASE_URL_CHARS_MAX} characters", member="base_url")
    return canonical


def _auth_server(url: str) -> str:
    return header_safe_url(url, member="auth_server")


@frozen(kw_only=True)
class ServicePolicy:
    """The settings of an incoming payment service. Raises `InvalidValue` with the name of the wrong setting.

    - `base_url`: the public URL of the service. The ids of payments and the signature bases contain this URL, and never
      the value of `Host`.
    - `auth_server`: the URL of the authorization server, where clients request grants.
    - `signature`: the policy for HTTP message signatures.
    - `public_get`: whether a request without a token can read the public view, which contains the received amount. If
      not, the response is 401.
    - `public_cors`: whether scripts of any website may read the public view (`Access-Control-Allow-Origin: *`).
    - `allow_identical`: whether a client without nonces may repeat a signed request, until its signature is too old.
      Clients that retry, or that sign twice within one second, send identical requests. Rafiki sends such requests, so
      `False` breaks payments from Rafiki.
    - `expiry_s_max`: how many seconds in the future `expiresAt` may be.
    - `idempotency_key_s`: for how many seconds the service keeps the `Idempotency-Key` of a created payment.
    - `default_expiry_s`: the lifetime in seconds of a payment that has neither `incomingAmount` nor `expiresAt`, at
      most `expiry_s_max`. `None` means never. The response shows the time in `expiresAt`.
    - `metadata_bytes_max` and `metadata_depth_max`: the greatest size and nesting depth of the metadata, as compact
      JSON.
    - `trailing_slash`: whether one slash may follow the path of the collection, of a payment or of `complete`. If not,
      the response is 404. The signature has to cover the URL with that slash.
    - `wording`: the descriptions of refusals. `"web-monetization"` selects those that the browser extension compares.
      The codes and statuses stay the same.
    """

    base_url: str = field(converter=_base_url)
    auth_server: str = field(converter=_auth_server)
    signature: SignaturePolicy = field(factory=SignaturePolicy, validator=instance(SignaturePolicy))
    public_get: bool = field(default=True, validator=instance(bool))
    public_cors: bool = field(default=True, validator=instance(bool))
    allow_identical: bool = field(default=True, validator=instance(bool))
    expiry_s_max: int = field(
        default=limits.EXPIRY_S_MAX_DEFAULT, validator=integer(1, 100 * limits.EXPIRY_S_MAX_DEFAULT)
    )
    idempotency_key_s: int = field(
        default=limits.IDEMPOTENCY_KEY_S_DEFAULT, validator=integer(1, limits.IDEMPOTENCY_KEY_S_MAX)
    )
    default_expiry_s: int | None = field(default=None)
    metadata_bytes_max: int = field(default=limits.METADATA_BYTES_DEFAULT, validator=integer(2, 32 * 1024))
    metadata_depth_max: int = field(
        default=limits.METADATA_DEPTH_DEFAULT, validator=integer(1, limits.JSON_DEPTH_MAX - 1)
    )
    trailing_slash: bool = field(default=False, validator=instance(bool))
    wording: Wording = field(default="plain")

    @wording.validator
    def _check_wording(self, _: object, wording: object) -> None:
        if wording not in get_args(Wording):
            raise InvalidValue(f"wording must be {' or '.join(get_args(Wording))}", member="wording")

    @default_expiry_s.validator
    def _check_default_expiry(self, attribute: "Attribute[int]", seconds: object) -> None:
        if seconds is not None:
            integer(1, self.expiry_s_max)(self, attribute, seconds)

    @signature.validator
    def _check_required(self, _: object, signature: SignaturePolicy) -> None:
        # A signature must cover these components (spec section 5). A host can require further components.
        if missing := [name for name in SignaturePolicy().required if name not in signature.required]:
            raise InvalidValue(f"signature must also require {', '.join(missing)}", member="signature")

    def describe(self, error: IncomingPaymentsError) -> str:
        """Return the description of `error` in the `wording` for clients."""
        if self.wording == "plain":
            return error.description
        if isinstance(error, SignatureRefused):
            return f"Signature validation error: {error.description}"
        return _MATCHED.get(error.code, error.description)

    def payment_url(self, id: PaymentId) -> str:
        """Return the URL of the payment, which is its `id` in JSON (spec section 2.2)."""
        return f"{self.base_url}{COLLECTION_PATH}/{id}"

    def payment_id(self, payment: PaymentId | str) -> PaymentId:
        """Return the id of `payment`, which is given as an id or as the URL of the payment at this service.

        The URL may have any spelling that `canonical_url` accepts. Raises `InvalidValue` for other text, and for a URL
        of another service.
        """
        below = f"{self.base_url}{COLLECTION_PATH}/"
        text = payment
        found = "another text" if isinstance(payment, str) else name_of(payment)
        with suppress(InvalidValue):
            url = canonical_url(payment, member="payment")
            text = url.removeprefix(below)
            if text == url:  # do not show the last segment or the query, which may contain a secret
                parts = urlsplit(url)
                found = f"a URL below {parts.scheme}://{parts.netloc}{parts.path.rpartition('/')[0]}/"
        try:
            return payment_id(text)
        except InvalidValue:
            text = f"payment must be a payment's id, or its URL below {below}, not {found}"
            raise InvalidValue(text, member="payment") from None
