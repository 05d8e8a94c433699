"""What an ASE decides about its service: addresses, windows and limits. One value, checked when it is built."""

from collections.abc import Callable

from attrs import Attribute, field, frozen

from incoming_payments.domain.payment import PaymentId
from incoming_payments.domain.urls import canonical_url, header_safe_url
from incoming_payments.errors import InvalidValue
from incoming_payments.httpsig import Policy as SignaturePolicy
from incoming_payments.limits import (
    EXPIRY_S_MAX,
    JSON_DEPTH_MAX,
    METADATA_BYTES_MAX,
    METADATA_DEPTH_MAX,
    URL_CHARS_MAX,
)

COLLECTION_PATH = "/incoming-payments"


def _base_url(url: object) -> str:
    canonical = canonical_url(url, member="base_url")
    if "?" in canonical:
        raise InvalidValue("base_url must not hold a query", member="base_url")
    if len(canonical) > URL_CHARS_MAX - 100:
        raise InvalidValue("base_url must leave room for the path of a payment", member="base_url")
    return canonical


def _auth_server(url: object) -> str:
    return header_safe_url(url, member="auth_server")


def _between(least: int, most: int) -> Callable[[object, "Attribute[int]", int], None]:
    def check(_: object, attribute: "Attribute[int]", value: int) -> None:
        if type(value) is not int or not least <= value <= most:
            name = attribute.name
            raise InvalidValue(f"{name} must be an integer from {least} to {most}", member=name)

    return check


@frozen(kw_only=True)
class ServicePolicy:
    """How this ASE runs its incoming payment service.

    `base_url` is the public URL of the service: ids and signatures are made with it, and no `Host` header is ever
    asked. `auth_server` is where clients ask for grants. `public_get` lets anybody who knows a payment's URL see how
    much it has received; without it such a request is answered 401. `allow_identical` lets the same signed request
    come again while it is fresh, if it has no nonce: clients that sign in whole seconds, and those that retry, send
    such. `expiry_s_max` is how many seconds ahead `expiresAt` may lie. `metadata_bytes_max` and `metadata_depth_max`
    bound the metadata, as compact JSON. Raises `InvalidValue` naming the setting.

    >>> policy = ServicePolicy(base_url="https://Bank.example/op/", auth_server="https://auth.bank.example")
    >>> policy.base_url
    'https://bank.example/op'
    """

    base_url: str = field(converter=_base_url)
    auth_server: str = field(converter=_auth_server)
    signature: SignaturePolicy = field(factory=SignaturePolicy)
    public_get: bool = True
    allow_identical: bool = True
    expiry_s_max: int = field(default=EXPIRY_S_MAX, validator=_between(1, 100 * EXPIRY_S_MAX))
    metadata_bytes_max: int = field(default=METADATA_BYTES_MAX, validator=_between(2, 32 * 1024))
    metadata_depth_max: int = field(default=METADATA_DEPTH_MAX, validator=_between(1, JSON_DEPTH_MAX - 1))

    @signature.validator
    def _covers_what_it_must(self, _: object, signature: SignaturePolicy) -> None:
        # Contract section 5: these MUST be included; a host may ask for more, and not for less.
        if missing := [name for name in SignaturePolicy().required if name not in signature.required]:
            raise InvalidValue(f"signature must require {', '.join(missing)} as well", member="signature")

    def payment_url(self, id: PaymentId) -> str:
        """The `id` of a payment on the wire: its URL. Contract section 2.2."""
        return f"{self.base_url}{COLLECTION_PATH}/{id}"
