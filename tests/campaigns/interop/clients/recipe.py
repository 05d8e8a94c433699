"""Describe the requests of a client of Open Payments, built as the client's source builds them.

The recipes sign by themselves. They use neither `httpsig.sign` nor `httpsig.signature_base`, because a client does not.
"""

import hashlib
import json
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Literal
from urllib.parse import urlsplit

from attrs import frozen

from campaigns.attacks.rows import Answer
from incoming_payments.httpsig import PrivateKey, RequestMessage

Call = Literal["create", "get", "list", "complete", "public get", "create without terms", "create over http"]
# the calls of most clients; the other calls show a difficulty of one client
CALLS: Final[tuple[Call, ...]] = ("create", "get", "list", "complete", "public get")
Fields = tuple[tuple[str, str], ...]
JSON: Final = "application/json"
METADATA: Final = {"invoice": "é 7"}  # the letter shows how a client encodes text outside ASCII


@frozen(kw_only=True)
class Account:
    """What a client knows: the service, a wallet address, its token and key, the time in seconds, and a payment."""

    base_url: str
    wallet_address: str
    token: str
    key: PrivateKey
    now_s: int
    payment: str

    @property
    def host(self) -> str:
        """The value of `Host`."""
        return urlsplit(self.base_url).netloc

    @property
    def collection(self) -> str:
        """The URL of the collection."""
        return f"{self.base_url}/incoming-payments"

    @property
    def authorization(self) -> str:
        """The value of `Authorization`."""
        return f"GNAP {self.token}"

    @property
    def keyid(self) -> str:
        """The parameter `keyid`."""
        return f';keyid="{self.key.kid}"'

    @property
    def created(self) -> str:
        """The parameter `created`."""
        return f";created={self.now_s}"

    def sign(
        self, names: Sequence[str], values: Mapping[str, str], parameters: str, *, quote: str = '"'
    ) -> tuple[str, str]:
        """Return the signature parameters and the signature in base64.

        `quote` encloses the names of the components in the parameters. RFC 9421 requires double quotes.
        """
        written = f"({' '.join([f'{quote}{name}{quote}' for name in names])}){parameters}"
        lines = [f'"{name}": {values[name]}' for name in names] + [f'"@signature-params": {written}']
        return written, b64encode(self.key.sign("\n".join(lines).encode())).decode()


@frozen(kw_only=True)
class Case:
    """One request of a client, and the answers to it.

    `build` makes the request. `default` is the answer of a service with its default settings, and `tuned` is the answer
    with the settings of the client. `note` says why the client gets an error, or cannot use the answer.
    """

    build: Callable[[Account], RequestMessage]
    default: Answer
    tuned: Answer
    note: str = ""


@frozen(kw_only=True)
class Client:
    """A published client, its requests, and the places in its source from which they were built.

    `settings` are the lines in `[limits]` of `serve` that the client needs. `tried` is the part of the client itself
    that ran against `serve`, once and by hand.
    """

    id: str
    name: str
    version: str
    repository: str
    commit: str
    files: tuple[str, ...]
    cases: Mapping[Call, Case]
    settings: tuple[str, ...] = ()
    tried: str = ""


def works(build: Callable[[Account], RequestMessage], status: int = 200) -> Case:
    """Return a case that works with every setting."""
    return Case(build=build, default=(status, None), tuned=(status, None))


def needs(build: Callable[[Account], RequestMessage], refused: Answer, status: int = 200) -> Case:
    """Return a case that works with the settings of the client, and that is `refused` by default."""
    return Case(build=build, default=refused, tuned=(status, None))


def fails(build: Callable[[Account], RequestMessage], answer: Answer, note: str) -> Case:
    """Return a case that fails with every setting, and the reason. `answer` is that of the service."""
    return Case(build=build, default=answer, tuned=answer, note=note)


def amount(*order: str) -> dict[str, object]:
    """Return an amount with its members in this order."""
    members: dict[str, object] = {"value": "2500", "assetCode": "USD", "assetScale": 2}
    return {name: members[name] for name in order}


def expires(account: Account, *, offset: str = "Z", fraction: str = "") -> str:
    """Return the time in ten minutes."""
    at = datetime.fromtimestamp(account.now_s + 600, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}{fraction}{offset}"


def compact(document: object, *, ascii_only: bool = False) -> bytes:
    """Return JSON without spaces, in UTF-8 or in ASCII with escapes."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=ascii_only).encode()


def sha512(body: bytes) -> str:
    """Return the value of `Content-Digest`."""
    return f"sha-512=:{b64encode(hashlib.sha512(body).digest()).decode()}:"
