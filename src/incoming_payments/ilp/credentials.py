"""The `ilp` method of a payment, derived from its id: nothing about it is stored, so nothing about it can leak.

The id goes, encrypted and authenticated, into the last segment of the ILP address; the shared secret is an HMAC of that
segment. Both hang on a server secret. A server has a list of those: the first makes new addresses, all of them read old
ones, so a secret is rotated by putting a new one in front and dropping the last when no payment made under it
can receive any more.

The encryption is AES-SIV (RFC 5297): deterministic, so a payment shows the same address whenever it is read, and
authenticated, so an address that we did not hand out is refused without a look-up. The address prefix is
authenticated as well.
"""

import base64
import hashlib
import hmac
import uuid
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Final

from attrs import field, frozen
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from incoming_payments.domain.methods import IlpPaymentMethod
from incoming_payments.domain.payment import IncomingPayment, PaymentId, payment_id
from incoming_payments.errors import InvalidValue, MalformedAddress
from incoming_payments.ilp.address import IlpAddress, ilp_address
from incoming_payments.limits import ILP_ADDRESS_CHARS_MAX, SERVER_SECRET_BYTES_MIN, SERVER_SECRETS_MAX

_SEGMENT_CHARS: Final = 43  # base64url of 32 bytes: the SIV, 16 bytes, and the id, 16 bytes
# What each derived key is for; a new scheme gets new names, and so other keys.
_ADDRESS_KEY: Final = b"incoming-payments/1/address"
_SHARED_SECRET_KEY: Final = b"incoming-payments/1/shared-secret"


@frozen
class StreamCredentials:
    """What a sender and this receiver share about one payment: `shared_secret` is 32 bytes, kept out of the `repr`."""

    payment_id: PaymentId
    ilp_address: IlpAddress
    shared_secret: bytes = field(repr=False)


def _secrets(secrets: Sequence[bytes]) -> tuple[bytes, ...]:
    return tuple(secrets)


@frozen
class DerivedMethods:
    """The default `MethodAllocator`: derives the `ilp` method of every payment from server secrets.

    `prefix` is the ILP address of this service; addresses of payments are one segment longer. `secrets` are the
    server secrets, newest first, each at least 32 random bytes. Raises `InvalidValue` when the prefix leaves no room,
    or a secret is missing, short or listed twice.

    >>> methods = DerivedMethods("test.bank", [b"a server secret of 32 bytes only"])
    >>> credentials = methods.derive(payment_id("019b76da-a800-7000-8000-000000000000"))
    >>> methods.read(credentials.ilp_address) == credentials
    True
    """

    prefix: IlpAddress = field(converter=ilp_address)
    secrets: tuple[bytes, ...] = field(converter=_secrets, repr=False)

    @prefix.validator
    def _leaves_room(self, _: object, prefix: IlpAddress) -> None:
        if len(prefix) + 1 + _SEGMENT_CHARS > ILP_ADDRESS_CHARS_MAX:
            raise InvalidValue(
                f"the ILP address must leave room for {_SEGMENT_CHARS + 1} more characters", member="ilpAddress"
            )

    @secrets.validator
    def _strong(self, _: object, secrets: tuple[bytes, ...]) -> None:
        if any(not isinstance(secret, bytes) or len(secret) < SERVER_SECRET_BYTES_MIN for secret in secrets):
            raise InvalidValue(f"a server secret is at least {SERVER_SECRET_BYTES_MIN} random bytes", member="secrets")
        if not 1 <= len(secrets) <= SERVER_SECRETS_MAX or len(set(secrets)) < len(secrets):
            raise InvalidValue(f"give 1 to {SERVER_SECRETS_MAX} different server secrets", member="secrets")

    def allocate(self, payment: IncomingPayment) -> tuple[IlpPaymentMethod, ...]:
        """The `ilp` method of `payment`, under the newest secret. The `MethodAllocator` port."""
        credentials = self.derive(payment.id)
        return (IlpPaymentMethod(credentials.ilp_address, _base64url(credentials.shared_secret)),)

    def derive(self, id: PaymentId) -> StreamCredentials:
        """Address and shared secret of the payment `id`, under the newest secret. Raises `InvalidValue` for no id."""
        secret = self.secrets[0]
        sealed = _cipher(secret).encrypt(uuid.UUID(payment_id(id)).bytes, [self.prefix.encode("ascii")])
        return self._credentials(secret, id, _base64url(sealed))

    def read(self, address: str) -> StreamCredentials:
        """The payment that `address` was handed out for, and its shared secret; no look-up is made.

        Raises `MalformedAddress` when this service did not hand it out under any of its secrets.
        """
        prefix, _, segment = address.rpartition(".")
        if prefix != self.prefix:
            raise MalformedAddress("the ILP address is not below this service's")
        sealed = _canonical_bytes(segment)
        for secret in self.secrets:
            try:
                opened = _cipher(secret).decrypt(sealed, [prefix.encode("ascii")])
            except InvalidTag:
                continue
            return self._credentials(secret, payment_id(str(uuid.UUID(bytes=opened))), segment)
        raise MalformedAddress("the ILP address was not handed out by this service")

    def _credentials(self, secret: bytes, id: PaymentId, segment: str) -> StreamCredentials:
        shared_secret = hmac.digest(_derived_key(secret, _SHARED_SECRET_KEY), segment.encode("ascii"), hashlib.sha256)
        return StreamCredentials(id, IlpAddress(f"{self.prefix}.{segment}"), shared_secret)


@lru_cache(maxsize=SERVER_SECRETS_MAX * 4)
def _derived_key(secret: bytes, purpose: bytes) -> bytes:
    """A key for one purpose. RFC 5869 §2.3: HKDF-Expand, as the secret is a key already and needs no extracting."""
    return hmac.digest(secret, purpose + b"\x01", hashlib.sha256)


@lru_cache(maxsize=SERVER_SECRETS_MAX * 2)
def _cipher(secret: bytes) -> AESSIV:
    return AESSIV(_derived_key(secret, _ADDRESS_KEY))


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _canonical_bytes(segment: str) -> bytes:
    """The bytes of `segment`, if it is the one spelling we would give them."""
    if len(segment) == _SEGMENT_CHARS:
        with suppress(ValueError):  # not ASCII, or no base64url
            data = base64.urlsafe_b64decode(segment + "=")
            if _base64url(data) == segment:
                return data
    raise MalformedAddress("the ILP address was not handed out by this service")
