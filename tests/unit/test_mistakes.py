"""Mistakes in values and settings: each is a typed error when the value is built, and says what to pass."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives.asymmetric import ed448, ed25519

from incoming_payments import (
    AccessRight,
    AccessToken,
    AccessTokenInfo,
    Asset,
    AsyncIncomingPayments,
    AsyncPorts,
    DerivedMethods,
    HttpPeer,
    IncomingPayments,
    IncomingPaymentsError,
    PacketPolicy,
    Peer,
    Ports,
    Receiver,
    Request,
    ServicePolicy,
    StaticIntrospector,
    WalletAddress,
    WalletAddressUrl,
    state_of,
)
from incoming_payments.endpoints.open_payments import handle
from incoming_payments.errors import ConfigurationError, InvalidValue, MalformedKey
from incoming_payments.flows.expire import announce_expired
from incoming_payments.flows.machinery.run import arun
from incoming_payments.hosts.asgi import AsgiApplication
from incoming_payments.hosts.wsgi import WsgiApplication
from incoming_payments.httpsig import Algorithm, Policy, PrivateKey, PublicKey, RequestMessage, sign, verify
from incoming_payments.outbound.client_keys import HttpClientKeys
from incoming_payments.outbound.introspection import HttpIntrospector
from incoming_payments.outbound.wallet_addresses import HttpWalletAddresses
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing import a_creation

# The arguments are wrong on purpose, so they have the type `Any`.
A: Final[Any] = "https://auth.bank.example"
CLASS: Final[Any] = MemoryStore
STORE: Final[Any] = MemoryStore()
METHODS: Final[Any] = DerivedMethods("test.bank", [bytes(32)])
RECEIVER: Final[Any] = Receiver(METHODS)
PEER: Final[Any] = Peer("test.bank.connector", Asset("USD", 2))
TOKEN: Final[Any] = AccessToken("a-token-of-the-peer")
KEY: Final[Any] = PrivateKey.generate_ed25519("k")
RAW: Final[Any] = ed25519.Ed25519PrivateKey.generate()
INFO: Final[Any] = AccessTokenInfo("https://shop.example", KEY.public_jwk(), [AccessRight(["read"])])
REQUEST: Final = RequestMessage("GET", "https://bank.example/", ())
SIGNED: Final = sign(REQUEST, KEY, created=1_700_000_000)
NOW: Final[Any] = datetime.now(UTC)
NAIVE: Final = datetime.now()  # noqa: DTZ005 - a time without a zone
UTC_ONLY: Final = "a time must be a datetime in UTC"
PAYMENT: Final = a_creation().answer  # without expiry: the time would not matter


def a_policy(**changes: Any) -> ServicePolicy:
    """Return the settings of a service with these changes."""
    return ServicePolicy(**{"base_url": "https://bank.example", "auth_server": A, **changes})


def an_info(**changes: Any) -> AccessTokenInfo:
    """Return the facts about a token with these changes."""
    return AccessTokenInfo(**{"client": "https://shop.example", "jwk": KEY.public_jwk(), "rights": [], **changes})


def verified(keys: Any = None, policy: Any = None, now: Any = NOW) -> object:
    """Verify a signature with these arguments."""
    return verify(SIGNED, keys or {"k": KEY.public_key()}, policy=policy or Policy(), now=now)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: Request("POST", "/", body="{}"), "body must be the bytes of the content, not str"),  # type: ignore[arg-type]
        (lambda: Request("POST", "/", body=5), "body must be the bytes of the content, not int"),  # type: ignore[arg-type]
        (lambda: Request("POST", "/", headers={"A": "b"}), r"headers must be \(name, value\) pairs, .* not dict"),  # type: ignore[dict-item]
        (lambda: a_policy(public_get="no"), "public_get must be of type bool, not str"),
        (lambda: a_policy(allow_identical=1), "allow_identical must be of type bool, not int"),
        (lambda: a_policy(signature={}), "signature must be of type Policy, not dict"),
        (lambda: a_policy(signature=Policy), "signature must be of type Policy, not the class Policy"),
        (lambda: a_policy(base_url=5), "base_url must be an absolute http or https URL"),
        (lambda: a_policy(auth_server=None), "auth_server must be an absolute http or https URL"),
        (lambda: an_info(client=None), "a client id must have"),
        (lambda: an_info(jwk=KEY), "jwk must be a mapping with the members of a public JWK, such as .* not PrivateKey"),
        (lambda: an_info(jwk="{}"), "jwk must be a mapping with the members of a public JWK, .* not str"),
        (lambda: an_info(rights=AccessRight(["read"])), "rights must be a list of AccessRight, not AccessRight"),
        (lambda: an_info(rights=["read"]), "rights must be a list of AccessRight, not of str"),
        (lambda: an_info(rights=None), "rights must be a list of AccessRight, not NoneType"),
        (lambda: an_info(expires_at=5), "expires_at must be a datetime with a time zone"),
        (lambda: AccessRight(None), "each of actions must be one of"),  # type: ignore[arg-type]
        (lambda: StaticIntrospector([("token", INFO)]), "tokens must be a list of AccessToken, not of str"),  # type: ignore[list-item]
        (lambda: StaticIntrospector([(TOKEN, {})]), "tokens must be a list of AccessTokenInfo, not of dict"),  # type: ignore[list-item]
        (lambda: StaticIntrospector((TOKEN, INFO)), "tokens must be a list of tuple, not of AccessToken"),
        (lambda: WalletAddress(5, Asset("USD", 2), A), "walletAddress must be an absolute"),  # type: ignore[arg-type]
        (lambda: Peer("test.bank.connector", "USD"), "asset must be of type Asset, not str"),  # type: ignore[arg-type]
        (lambda: Receiver(bytes(32)), "methods must be of type DerivedMethods, not bytes"),  # type: ignore[arg-type]
        (lambda: Receiver(METHODS, 0.01), "tolerance must be of type Tolerance, not float"),  # type: ignore[arg-type]
        (lambda: HttpPeer(PEER, ["a-token-of-the-peer"]), "tokens must be a list of AccessToken, not of str"),  # type: ignore[list-item]
        (lambda: HttpPeer(PEER, "a-token-of-the-peer"), "tokens must be a list of AccessToken, not str"),  # type: ignore[arg-type]
        (lambda: HttpPeer(PEER, TOKEN), "tokens must be a list of AccessToken, not AccessToken"),
        (lambda: HttpPeer("test.bank.connector", [TOKEN]), "peer must be of type Peer, not str"),  # type: ignore[arg-type]
        (lambda: PacketPolicy(peers=[PEER]), "peers must be a list of HttpPeer, not of Peer"),
        (lambda: PacketPolicy(peers=None), "peers must be a list of HttpPeer, not NoneType"),  # type: ignore[arg-type]
        (lambda: sign(REQUEST, RAW, created=5), (
            "key must be a PrivateKey, not .*: load the key with "
            "PrivateKey.from_pem")),
        (lambda: sign(REQUEST, KEY.public_jwk(), created=5), "key must be a PrivateKey, not dict"),
        (lambda: verified(keys={"k": KEY.public_jwk()}), (
            "keys must map each kid to a PublicKey: use load_jwk to load the "
            "keys")),
        (lambda: verified(keys=[KEY.public_key()]), "keys must map each kid to a PublicKey"),
        (lambda: verified(policy={"max_age_s": 5}), "policy must be a Policy, not dict"),
        (lambda: state_of(PAYMENT, NAIVE), UTC_ONLY),
        (lambda: state_of(PAYMENT, None), UTC_ONLY),  # type: ignore[arg-type]
        (lambda: next(handle(Request("GET", "/"), policy=a_policy(), now=NAIVE)), UTC_ONLY),
        (lambda: next(announce_expired(NAIVE)), UTC_ONLY),
        (lambda: verified(now=5), "now has no time zone: pass a datetime with tzinfo"),
        (lambda: Policy(nonce_required="no"), "nonce_required must be True or False"),  # type: ignore[arg-type]
        (lambda: Policy(tag=5), "tag must be a string, or None"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_wrong_value_is_refused(build: Callable[[], object], text: str) -> None:
    """A value of a wrong type is an `InvalidValue` with the name of the wrong member."""
    with pytest.raises(InvalidValue, match=text) as caught:
        build()
    assert caught.value.details["member"]


@pytest.mark.parametrize(
    "build",
    [
        lambda: PrivateKey("k", Algorithm.ED25519, ed448.Ed448PrivateKey.generate()),
        lambda: PrivateKey("k", Algorithm.ES256, RAW),
        lambda: PrivateKey("k", "EdDSA", RAW),  # type: ignore[arg-type]
        lambda: PublicKey("k", "EdDSA", RAW.public_key()),  # type: ignore[arg-type]
    ],
)
def test_unknown_key_type_is_refused(build: Callable[[], object]) -> None:
    """A key of an unsupported kind, or with an algorithm that it does not fit, is `MalformedKey`."""
    with pytest.raises(MalformedKey) as caught:
        build()
    assert caught.value.details == {"member": "alg"}


@pytest.mark.parametrize("kind", [Ports, AsyncPorts])
@pytest.mark.parametrize(
    ("name", "port", "text"),
    [
        ("store", CLASS, "not the class MemoryStore: pass an instance"),
        (
            "store",
            object(),
            ("the methods insert, find_creation, load, update, events, find_expired, find_payments, not object"),
        ),
        ("store", {}, "not dict"),
        ("wallet_addresses", {}, "wallet_addresses must be an object with the method find, not dict"),
        ("introspector", STORE, "with the method introspect, not MemoryStore"),
        ("nonces", STORE, "with the method use, not MemoryStore"),
        ("methods", RECEIVER, "with the method allocate, not Receiver"),
        ("approval", {}, "with the methods approve_payment, approve_credit, not dict"),
        ("approval_s", 0, "approval_s must be a number of seconds up to 30.0, not 0"),
        ("approval_s", 31, "up to 30.0, not 31"),
        ("approval_s", float("nan"), "up to 30.0, not nan"),
        ("approval_s", True, "up to 30.0, not True"),
        ("approval_s", "1", "up to 30.0, not '1'"),
        ("quotas", {}, "with the methods admit, reserve, release, not dict"),
        ("randomness", b"random", "randomness must be a function that takes a number of bytes, not bytes"),
    ],
)
def test_wrong_port_is_refused(kind: type[Ports | AsyncPorts], name: str, port: Any, text: str) -> None:
    """An object without the methods of its port is a `ConfigurationError` that lists the methods."""
    with pytest.raises(ConfigurationError, match=text) as caught:
        kind(**{name: port})
    assert caught.value.details == {"setting": name}
    assert isinstance(caught.value, IncomingPaymentsError)


@pytest.mark.parametrize(
    ("adapter", "service"), [(WsgiApplication, IncomingPayments), (AsgiApplication, AsyncIncomingPayments)]
)
def test_adapter_refuses_the_class_of_a_service(adapter: Any, service: Any) -> None:
    """The message does not compare the class with itself."""
    text = f"this adapter takes {service.__name__}, not the class {service.__name__}: pass an instance"
    with pytest.raises(ConfigurationError, match=text) as caught:
        adapter(service)
    assert caught.value.details == {"setting": "service"}


class AsyncAddresses:
    """Wallet addresses for asyncio."""

    async def find(self, url: WalletAddressUrl) -> WalletAddress | None:
        """Return no wallet address."""


BLOCKING: Final[list[tuple[str, Callable[[Path], Any], str]]] = [
    ("store", lambda folder: SqliteStore(folder / "x.sqlite3"), "AsyncSqliteStore"),
    ("nonces", lambda folder: SqliteStore(folder / "x.sqlite3").nonces, "the nonces of an AsyncSqliteStore"),
    (
        "introspector",
        lambda _: HttpIntrospector("https://auth.bank.example/introspect", dialect="rafiki"),
        "AsyncHttpIntrospector",
    ),
    ("client_keys", lambda _: HttpClientKeys(), "AsyncHttpClientKeys"),
    ("wallet_addresses", lambda _: HttpWalletAddresses(["https://bank.example"]), "AsyncHttpWalletAddresses"),
]


@pytest.mark.parametrize(("name", "build", "use"), BLOCKING, ids=[name for name, *_ in BLOCKING])
def test_port_that_would_block_the_loop_is_refused(
    tmp_path: Path, name: str, build: Callable[[Path], Any], use: str
) -> None:
    """`AsyncPorts`, `AsyncIncomingPayments` and `arun` refuse such ports of this library, and name the async ones."""
    port = build(tmp_path)
    text = f"^{name} is a {type(port).__name__}, which would block the event loop: use {use}$"
    plain = Ports(**{"store": STORE, name: port})
    with pytest.raises(ConfigurationError, match=text) as caught:
        AsyncPorts(**{name: port})
    assert caught.value.details == {"setting": name}
    with pytest.raises(ConfigurationError, match=text):
        AsyncIncomingPayments(policy=a_policy(), ports=plain)
    with pytest.raises(ConfigurationError, match=text):
        asyncio.run(arun(announce_expired(NOW), plain))
    IncomingPayments(policy=a_policy(), ports=plain)


def test_async_port_is_refused_by_the_sync_ports() -> None:
    """`Ports` refuses an `async def` port when it is built, before a request needs the port. `AsyncPorts` takes it."""
    with pytest.raises(
        ConfigurationError, match="wallet_addresses is async: pass AsyncPorts to AsyncIncoming"
    ) as caught:
        Ports(wallet_addresses=AsyncAddresses())  # type: ignore[arg-type]
    assert caught.value.details == {"setting": "wallet_addresses"}
    AsyncPorts(wallet_addresses=AsyncAddresses())
