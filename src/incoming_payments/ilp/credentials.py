"""Derive the `ilp` payment method of a payment from its id. The database has no secret that could leak.

The last segment of the ILP address is the payment id, encrypted by AES-SIV (RFC 5297). The encryption is deterministic,
so a payment always has the same address. The encryption authenticates the id and the address prefix. So the service
needs no database query to refuse an address that it did not issue. The shared secret of a payment is an HMAC of the
segment.

All keys are derived from a list of server secrets. New addresses are encrypted with the first secret. Each secret still
decrypts the addresses that were encrypted with it. To rotate the secrets, put a new secret in front. Remove an old
secret when all payments that were created with it have completed or expired.
"""

import base64
import hashlib
import hmac
import uuid
from contextlib import suppress
from functools import cached_property
from typing import Final, NamedTuple, Self

from attrs import field, frozen
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from incoming_payments.domain.checks import name_of
from incoming_payments.domain.methods import IlpAddress, IlpPaymentMethod, ilp_address
from incoming_payments.domain.payment import IncomingPayment, PaymentId, payment_id
from incoming_payments.errors import InvalidValue, MalformedAddress
from incoming_payments.limits import (
    ILP_ADDRESS_CHARS_MAX,
    SERVER_SECRET_BYTES_MIN,
    SERVER_SECRETS_MAX,
)

_SEGMENT_CHARS: Final = 43  # the length of 32 bytes in base64url: 16 bytes of SIV and 16 bytes of id
# The purpose of each derived key. A new scheme must use new names, so that its keys differ from these keys.
_ADDRESS_KEY: Final = b"incoming-payments/1/address"
_SHARED_SECRET_KEY: Final = b"incoming-payments/1/shared-secret"
_NOT_ISSUED: Final = "this service did not issue the ILP address"


@frozen
class StreamCredentials:
    """The STREAM details of a payment, for its sender and this receiver. The `repr` does not show the secret."""

    payment_id: PaymentId
    ilp_address: IlpAddress
    shared_secret: bytes = field(repr=False)


@frozen
class DerivedMethods:
    """The default `MethodAllocator`, which derives the `ilp` method of every payment from server secrets.

    `prefix` is the ILP address of this service. The address of a payment has one more segment. `secrets` are the server
    secrets, newest first. Each secret has at least 32 random bytes. Raises `InvalidValue` when the prefix is too long,
    when there is no secret, or when a secret is too short or listed twice.

    >>> methods = DerivedMethods("test.bank", [b"a server secret of 32 bytes only"])
    >>> credentials = methods.derive(payment_id("019b76da-a800-7000-8000-000000000000"))
    >>> methods.read(credentials.ilp_address) == credentials
    True
    """

    prefix: IlpAddress = field(converter=ilp_address)
    secrets: tuple[bytes, ...] = field(converter=tuple[bytes, ...], repr=False)

    @prefix.validator
    def _check_prefix_length(self, _: object, prefix: IlpAddress) -> None:
        most = ILP_ADDRESS_CHARS_MAX - 1 - _SEGMENT_CHARS
        if len(prefix) > most:
            raise InvalidValue(
                f"the ILP address of the service must have at most {most} characters, "
                "because each payment adds a segment to it",
                member="ilpAddress",
            )

    @secrets.validator
    def _check_secrets(self, _: object, secrets: tuple[bytes, ...]) -> None:
        for secret in secrets:
            if not isinstance(secret, bytes) or len(secret) < SERVER_SECRET_BYTES_MIN:
                found = f"{len(secret)} bytes" if isinstance(secret, bytes) else name_of(secret)
                text = f"each server secret must be at least {SERVER_SECRET_BYTES_MIN} random bytes, not {found}"
                raise InvalidValue(text, member="secrets")
        if not 1 <= len(secrets) <= SERVER_SECRETS_MAX or len(set(secrets)) < len(secrets):
            raise InvalidValue(f"give 1 to {SERVER_SECRETS_MAX} different server secrets", member="secrets")

    @cached_property
    def _keys(self) -> tuple["_Keys", ...]:
        return tuple(_Keys.derived_from(secret) for secret in self.secrets)

    def allocate(self, payment: IncomingPayment) -> tuple[IlpPaymentMethod, ...]:
        """Return the `ilp` method of `payment` under the newest secret. This is the `MethodAllocator` port."""
        credentials = self.derive(payment.id)
        return (IlpPaymentMethod(credentials.ilp_address, _base64url(credentials.shared_secret)),)

    def derive(self, id: PaymentId) -> StreamCredentials:
        """Return the credentials of the payment `id` under the newest secret. Raises `InvalidValue` for a wrong id."""
        keys = self._keys[0]
        sealed = keys.cipher.encrypt(bytes.fromhex(payment_id(id).replace("-", "")), [self.prefix.encode("ascii")])
        return self._credentials(keys, id, _base64url(sealed))

    def read(self, address: str) -> StreamCredentials:
        """Return the credentials for `address`. Raises `MalformedAddress` if no secret can decrypt `address`."""
        prefix, _, segment = address.rpartition(".")
        if prefix != self.prefix:
            raise MalformedAddress("the ILP address does not begin with the address of this service")
        sealed = _canonical_bytes(segment)
        for keys in self._keys:
            try:
                opened = keys.cipher.decrypt(sealed, [prefix.encode("ascii")])
            except InvalidTag:
                continue
            return self._credentials(keys, payment_id(str(uuid.UUID(bytes=opened))), segment)
        raise MalformedAddress(_NOT_ISSUED)

    def _credentials(self, keys: "_Keys", id: PaymentId, segment: str) -> StreamCredentials:
        shared = hmac.digest(keys.shared_secret, segment.encode("ascii"), hashlib.sha256)
        return StreamCredentials(id, IlpAddress(f"{self.prefix}.{segment}"), shared)


class _Keys(NamedTuple):
    """The two keys that are derived from a server secret: a key for ILP addresses, and a key for shared secrets."""

    cipher: AESSIV
    shared_secret: bytes

    @classmethod
    def derived_from(cls, secret: bytes) -> Self:
        return cls(AESSIV(_derived_key(secret, _ADDRESS_KEY)), _derived_key(secret, _SHARED_SECRET_KEY))


def _derived_key(secret: bytes, purpose: bytes) -> bytes:
    """Return the key for one purpose by HKDF-Expand (RFC 5869 §2.3). A random secret needs no HKDF-Extract."""
    return hmac.digest(secret, purpose + b"\x01", hashlib.sha256)


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _canonical_bytes(segment: str) -> bytes:
    """Return the bytes of `segment`. Raise `MalformedAddress` if its encoding is not canonical."""
    if len(segment) == _SEGMENT_CHARS:
        with suppress(ValueError):  # the segment is not ASCII, or not base64url
            data = base64.urlsafe_b64decode(segment + "=")
            if _base64url(data) == segment:
                return data
    raise MalformedAddress(_NOT_ISSUED)
