"""The secrets of a webhook endpoint, and the signatures of Standard Webhooks."""

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterable
from typing import Final

from attrs import field, frozen
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from incoming_payments.limits import WEBHOOK_SECRET_BYTES_MAX, WEBHOOK_SECRET_BYTES_MIN, WEBHOOK_SECRETS_MAX
from incoming_payments.outbound._settings import wrong

_SYMMETRIC: Final = "whsec_"
_PRIVATE: Final = "whsk_"
_PUBLIC: Final = "whpk_"
_SEED_BYTES: Final = 32
_PAIR_BYTES: Final = 64  # a seed, and the public key behind it


@frozen(eq=False)
class WebhookSecret:
    """A secret that signs webhooks. No text that this class produces contains the secret."""

    version: str
    _sign: Callable[[bytes], bytes] = field(repr=False)

    def sign(self, content: bytes) -> str:
        """Return the version and the signature of `content`, as in the header `webhook-signature`."""
        return f"{self.version},{base64.b64encode(self._sign(content)).decode('ascii')}"


def webhook_secrets(texts: Iterable[str]) -> tuple[WebhookSecret, ...]:
    """Return the secrets in `texts`. Raises `ConfigurationError`, which never shows a secret."""
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise wrong("secrets", f"must be a list of strings that begin with {_SYMMETRIC} or {_PRIVATE}")
    secrets = tuple(_secret(text, f"secrets[{index}]") for index, text in enumerate(texts))
    if not 1 <= len(secrets) <= WEBHOOK_SECRETS_MAX:
        raise wrong("secrets", f"must have 1 to {WEBHOOK_SECRETS_MAX} secrets, not {len(secrets)}")
    return secrets


def _secret(text: object, name: str) -> WebhookSecret:
    if isinstance(text, str) and text.startswith(_SYMMETRIC):
        key = _decoded(text.removeprefix(_SYMMETRIC), name)
        if not WEBHOOK_SECRET_BYTES_MIN <= len(key) <= WEBHOOK_SECRET_BYTES_MAX:
            least, most = WEBHOOK_SECRET_BYTES_MIN, WEBHOOK_SECRET_BYTES_MAX
            raise wrong(name, f"must have {least} to {most} bytes after {_SYMMETRIC}, and has {len(key)}")
        return WebhookSecret("v1", lambda content: hmac.digest(key, content, hashlib.sha256))
    if isinstance(text, str) and text.startswith(_PRIVATE):
        return WebhookSecret("v1a", _private_key(_decoded(text.removeprefix(_PRIVATE), name), name).sign)
    if isinstance(text, str) and text.startswith(_PUBLIC):
        raise wrong(name, f"is a public key: give the private key, which begins with {_PRIVATE}")
    how = f'`echo "{_SYMMETRIC}$(openssl rand -base64 32)"` makes a secret'
    raise wrong(name, f"must be a string that begins with {_SYMMETRIC} or {_PRIVATE}: {how}")


def _decoded(text: str, name: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise wrong(name, "must have base64 with padding after its prefix, and no space or line break") from None


def _private_key(key: bytes, name: str) -> Ed25519PrivateKey:
    if len(key) not in (_SEED_BYTES, _PAIR_BYTES):
        text = (
            f"must have the {_SEED_BYTES} bytes of a private key for Ed25519 after {_PRIVATE}, or {_PAIR_BYTES} bytes "
            f"with the public key behind them, and has {len(key)}"
        )
        raise wrong(name, text)
    private = Ed25519PrivateKey.from_private_bytes(key[:_SEED_BYTES])
    if key[_SEED_BYTES:] not in (b"", private.public_key().public_bytes_raw()):
        raise wrong(name, "has a public key that does not belong to its private key")
    return private
