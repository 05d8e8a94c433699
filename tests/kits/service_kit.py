"""A service and a client that signs requests, for the tests of flows, api and hosts."""

import itertools
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Any, Final, TypeVar

import pytest
from attrs import evolve
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.payment import (
    Credit,
    InactiveWalletAddress,
    PaymentId,
    WalletAddress,
    WalletAddressUrl,
    wallet_address_url,
)
from incoming_payments.endpoints.open_payments import Request, Response, handle
from incoming_payments.flows.machinery.effects import CountRequest, Effect, Flow
from incoming_payments.flows.machinery.ports import Ports
from incoming_payments.flows.machinery.run import run
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.flows.receive import receive
from incoming_payments.gnap import AccessRight, AccessToken, AccessTokenInfo, StaticIntrospector, TokenQuery
from incoming_payments.httpsig import PrivateKey, RequestMessage, sign
from incoming_payments.ilp import DerivedMethods
from incoming_payments.ports import Observation
from incoming_payments.stores.memory import MemoryNonces, MemoryStore
from incoming_payments.testing import FakeClock
from kits.openapi_kit import check

T = TypeVar("T")
Send = Callable[[Request], Response]

BASE_URL: Final = "https://bank.example/op"
AUTH_SERVER: Final = "https://auth.bank.example"
PATH: Final = "/incoming-payments"
JSON: Final = ("Content-Type", "application/json")
SERVER_SECRET: Final = b"a server secret only for the tests"
SHOP: Final = "https://shop.example/"
OTHER_SHOP: Final = "https://other-shop.example/"
NOBODYS_ID: Final = "019b76da-a800-7000-8000-000000000000"

USD: Final = Asset("USD", 2)
JPY: Final = Asset("JPY", 0)
ALICE: Final = WalletAddress(wallet_address_url("https://bank.example/alice"), USD, "https://auth.alice.example")
BOB: Final = WalletAddress(wallet_address_url("https://bank.example/bob"), JPY, "https://auth.bob.example")

_counter = itertools.count(1)


# --- keys ------------------------------------------------------------------------------------------


@cache
def ed25519_key(kid: str = "ed25519-key") -> PrivateKey:
    """Return an Ed25519 key, always the same for the same `kid`."""
    return PrivateKey.generate_ed25519(kid)


@cache
def es256_key() -> PrivateKey:
    """Return an ES256 key."""
    return PrivateKey.from_pem(_pem(ec.generate_private_key(ec.SECP256R1())), kid="es256-key")


@cache
def ps512_key() -> PrivateKey:
    """Return a PS512 key."""
    return PrivateKey.from_pem(_pem(rsa.generate_private_key(65537, 2048)), kid="ps512-key")


def _pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def a_right(*actions: str, on: WalletAddress | None = ALICE) -> AccessRight:
    """Return a right to `actions` on one wallet address, or on all with `on=None`."""
    return AccessRight(actions, None if on is None else on.url)


# --- the service -----------------------------------------------------------------------------------


class Hosted:
    """A `WalletAddresses` port with the wallet addresses in `addresses`."""

    def __init__(self) -> None:
        self.addresses: dict[WalletAddressUrl, WalletAddress | InactiveWalletAddress] = {ALICE.url: ALICE, BOB.url: BOB}

    def find(self, url: WalletAddressUrl) -> WalletAddress | InactiveWalletAddress | None:
        """Return the wallet address with this URL, or `None`."""
        return self.addresses.get(url)


class Tokens:
    """An `Introspector` port. Tests add tokens to it."""

    def __init__(self) -> None:
        self._known: list[tuple[AccessToken, AccessTokenInfo]] = []

    def add(self, token: str, info: AccessTokenInfo) -> None:
        """Add an active token."""
        self._known.append((AccessToken(token), info))

    def introspect(self, query: TokenQuery) -> AccessTokenInfo | None:
        """Return the information about the token, or `None`."""
        return StaticIntrospector(self._known).introspect(query)


class Service:
    """An ASE with two wallet addresses, a memory store and a fake clock. `policy` has settings to change."""

    def __init__(self, **policy: Any) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore()
        self.hosted = Hosted()
        self.tokens = Tokens()
        self.methods = DerivedMethods("test.bank", [SERVER_SECRET])
        self.policy = ServicePolicy(**{"base_url": BASE_URL, "auth_server": AUTH_SERVER, **policy})
        self.ports = Ports(
            store=self.store,
            wallet_addresses=self.hosted,
            introspector=self.tokens,
            nonces=MemoryNonces(),
            methods=self.methods,
        )

    @property
    def now(self) -> datetime:
        """Return the time of the clock."""
        return self.clock()

    def replace(self, **ports: Any) -> None:
        """Replace some ports."""
        self.ports = evolve(self.ports, **ports)

    def run(self, flow: Flow[T]) -> T:
        """Run `flow` with the ports of the service."""
        return run(flow, self.ports)

    def handle(self, request: Request) -> Response:
        """Return the response to `request`, without a host. The OpenAPI document must have this response."""
        response = self.run(handle(request, policy=self.policy, now=self.now))
        check(request.method, request.path, response)
        return response

    def receive(self, id: str, value: int, *, credit_id: str = "wire-1", asset: Asset = USD) -> Credit:
        """Credit `value` minor units to the payment `id`."""
        return self.run(receive(id, credit_id=credit_id, amount=Amount(value, asset), clock=self.clock))

    def client(
        self,
        *rights: AccessRight,
        name: str = SHOP,
        key: PrivateKey | None = None,
        jwk: Mapping[str, object] | None = None,
        expires_at: datetime | None = None,
    ) -> "Client":
        """Return a client with a new token. By default it may create and read on Alice's wallet address."""
        token, key = f"TOKEN{next(_counter):06}", key or ed25519_key()
        rights = rights or (a_right("create", "read"),)
        self.tokens.add(token, AccessTokenInfo(name, jwk or key.public_jwk(), rights, expires_at))
        return Client(self, token, key)


class Unused:
    """Every port at once. A call of any of them fails."""

    def insert(self, *_: object) -> Any:
        """Fail."""
        raise AssertionError("this port must not be used")

    load = update = events = find_expired = find_creation = find_payments = insert
    find = introspect = use = allocate = approve_payment = approve_credit = admit = reserve = release = insert


class Recorder:
    """An `Observer` that keeps all observations."""

    def __init__(self) -> None:
        self.observations: list[Observation] = []

    def observe(self, observation: Observation) -> None:
        """Keep `observation`."""
        self.observations.append(observation)

    def take(self) -> list[Observation]:
        """Return the observations since the last call, and check and remove their durations."""
        taken, self.observations = self.observations, []
        assert all(0 < one.duration_s < 60 for one in taken)
        return [evolve(one, duration_s=0.0) for one in taken]


class BrokenObserver:
    """An `Observer` that fails."""

    def observe(self, _: Observation) -> None:
        """Fail."""
        raise RuntimeError("the observer is broken")


def settings(service: Service, options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the service object for `service`. Take those that `options` has out of `options`."""
    given: dict[str, Any] = {
        name: options.pop(name) for name in ("policy", "ports", "packets", "clock", "observer") if name in options
    }
    return {"policy": service.policy, "ports": service.ports, "clock": service.clock, **given}


class Client:
    """A client that signs requests as Open Payments clients do. `send` sends them, by default to `handle`."""

    def __init__(self, service: Service, token: str, key: PrivateKey) -> None:
        self.service = service
        self.token = token
        self.key = key
        self.send: Send = service.handle
        self.base_url = service.policy.base_url

    def sign(self, request: Request, **options: Any) -> Request:
        """Return `request` with a token and a signature. `options` are the options of `httpsig.sign`."""
        query = f"?{request.query}" if request.query else ""
        target = f"{self.base_url}{request.path}{query}"
        headers = (("Authorization", f"GNAP {self.token}"), *request.headers)
        unsigned = RequestMessage(request.method, target, headers, request.body)
        keys = ["idempotency-key"] if unsigned.values("idempotency-key") and "components" not in options else []
        signed = sign(unsigned, self.key, **{"created": self.service.now, "also": keys, **options})
        return evolve(request, headers=signed.headers)

    def creation(self, body: bytes | Mapping[str, object] | None = None, **options: Any) -> Request:
        """Return a signed create request, by default with only Alice's wallet address."""
        if body is None:
            body = {"walletAddress": ALICE.url}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = (JSON, ("Content-Length", str(len(content))))
        return self.sign(Request("POST", PATH, headers=headers, body=content), **options)

    def create(self, **members: object) -> Response:
        """Send a create request with these members, by default for Alice's wallet address."""
        return self.send(self.creation({"walletAddress": ALICE.url, **members}))

    def creates(self, **members: object) -> PaymentId:
        """Create a payment, and return its id."""
        return id_of(self.create(**members))

    def get(self, id: str, method: str = "GET") -> Response:
        """Send a signed GET of the payment `id`."""
        return self.send(self.sign(Request(method, f"{PATH}/{id}")))


# --- responses -------------------------------------------------------------------------------------


def header(response: Response, name: str) -> str | None:
    """Return the only value of a header field, or `None`."""
    values = [value for field, value in response.headers if field.lower() == name.lower()]
    assert len(values) <= 1
    return values[0] if values else None


def document(response: Response, status: int = 200) -> dict[str, Any]:
    """Return the JSON object in a response, and check its status, its media type and `no-store`."""
    assert (status, "application/json", "no-store") == (
        response.status,
        header(response, "Content-Type"),
        header(response, "Cache-Control"),
    ), response.body
    members: dict[str, Any] = json.loads(response.body)
    return members


def id_of(created: Response) -> PaymentId:
    """Return the id of a created payment, the last segment of its URL."""
    return PaymentId(str(document(created, 201)["id"]).rpartition("/")[2])


def refusal(response: Response, challenge: str = f"GNAP as_uri={AUTH_SERVER}") -> tuple[int, str]:
    """Return the status and code of a refusal, and check its header fields and its body."""
    assert header(response, "Content-Type") == "application/json"
    assert header(response, "Cache-Control") == "no-store"
    expected_challenge = challenge if response.status == 401 else None
    assert expected_challenge == header(response, "WWW-Authenticate")
    assert (response.status == 405) == (header(response, "Allow") is not None)
    assert (response.status in {429, 503}) == (header(response, "Retry-After") is not None)
    body = json.loads(response.body)
    assert list(body) == ["error"]
    error = body["error"]
    assert list(error) in (["code", "description"], ["code", "description", "details"])
    assert isinstance(error["description"], str)
    assert error["description"]
    assert error.get("details", True)  # details are never empty
    return response.status, error["code"]


# --- stepping flows --------------------------------------------------------------------------------


class Crash(BaseException):
    """The simulated end of the process."""


def watched(flow: Flow[T], seen: list[Effect[Any]], *, crash_after: int | None = None) -> Flow[T]:
    """Run `flow` and record its effects in `seen`. Raise `Crash` after `crash_after` of them."""
    try:
        effect = next(flow)
        while True:
            seen.append(effect)
            try:
                answer = yield effect
            except Exception as error:  # noqa: BLE001 - the flow handles it
                effect = flow.throw(error)
            else:
                if len(seen) == crash_after:
                    raise Crash
                effect = flow.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return] # the type of a generator's return value is lost in StopIteration
    finally:
        flow.close()


def admitted(flow: Flow[T], info: AccessTokenInfo) -> Effect[Any]:
    """Answer the introspection of `flow` by `info`, admit the request, and return the next effect."""
    assert isinstance(flow.send(info), CountRequest)
    return flow.send(None)


def finish(flow: Flow[T], answer: object = None) -> T:
    """Answer the last effect of `flow`, and return its result."""
    with pytest.raises(StopIteration) as stop:
        flow.send(answer)
    return stop.value.value  # type: ignore[no-any-return] # as in `watched`
