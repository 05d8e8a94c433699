"""The offers of the clients to a TLS server: no server can choose a key exchange that takes long."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import pytest

from incoming_payments.domain.payment import ClientId, WalletAddressUrl
from incoming_payments.errors import PortUnavailable
from incoming_payments.gnap import AccessToken, TokenQuery
from incoming_payments.outbound.client_keys import AsyncHttpClientKeys, HttpClientKeys
from incoming_payments.outbound.introspection import AsyncHttpIntrospector, HttpIntrospector
from incoming_payments.outbound.wallet_addresses import AsyncHttpWalletAddresses, HttpWalletAddresses
from kits.scripted_server import scripted_server

TLS_1_3: Final = {0x1301, 0x1302, 0x1303}  # the suites of TLS 1.3: AES-GCM and ChaCha20
ECDHE: Final = {0xC02B, 0xC02C, 0xC02F, 0xC030, 0xCCA8, 0xCCA9}  # of TLS 1.2, likewise
NO_SUITE: Final = 0x00FF  # says that the client knows RFC 5746
P_256: Final = 0x0017
SUPPORTED_GROUPS: Final = 10


def offers(hello: bytes) -> tuple[set[int], set[int]]:
    """Return the cipher suites and the groups in a record with a ClientHello. RFC 8446 §4.1.2."""

    def take(size: int) -> bytes:
        nonlocal hello
        taken, hello = hello[:size], hello[size:]
        assert len(taken) == size
        return taken

    def vector(length_size: int) -> bytes:
        return take(int.from_bytes(take(length_size)))

    def numbers(octets: bytes) -> set[int]:
        return {int.from_bytes(octets[at : at + 2]) for at in range(0, len(octets), 2)}

    take(5 + 4 + 2 + 32)  # the headers of the record and of the message, the version, the random bytes
    vector(1)  # the session
    suites = numbers(vector(2))
    vector(1)  # the compression methods
    hello = vector(2)
    extensions = {}
    while hello:
        name = int.from_bytes(take(2))
        extensions[name] = vector(2)
    return suites, numbers(extensions[SUPPORTED_GROUPS][2:])


Call = Callable[[], Any]


def find_key(cls: Any, url: str) -> tuple[Any, Call]:
    """Return a port, and a call that looks up a key of the client `url`."""
    port = cls(allow_private=True, timeout_s=5)
    return port, lambda: port.find(ClientId(url), "key-1")


def find_wallet_address(cls: Any, url: str) -> tuple[Any, Call]:
    """Return a port, and a call that looks up the wallet address `url`."""
    port = cls([url], allow_private=True, timeout_s=5)
    return port, lambda: port.find(WalletAddressUrl(url))


def introspect(cls: Any, url: str) -> tuple[Any, Call]:
    """Return a port, and a call that introspects a token at `url`."""
    port = cls(url, dialect="rafiki", timeout_s=5)
    return port, lambda: port.introspect(TokenQuery(AccessToken("T0KEN"), "read"))


@pytest.mark.parametrize(
    ("cls", "open_port"),
    [
        (HttpClientKeys, find_key),
        (AsyncHttpClientKeys, find_key),
        (HttpWalletAddresses, find_wallet_address),
        (AsyncHttpWalletAddresses, find_wallet_address),
        (HttpIntrospector, introspect),
        (AsyncHttpIntrospector, introspect),
    ],
)
def test_only_elliptic_curves_are_offered(cls: type, open_port: Callable[[type, str], tuple[Any, Call]]) -> None:
    """A server cannot choose Diffie-Hellman with a prime of thousands of bits, in TLS 1.2 and in TLS 1.3."""

    def hang_up(*_: object) -> None:
        raise ConnectionResetError

    async def ask(port: Any, call: Call) -> None:
        with pytest.raises(PortUnavailable):
            await call()
        await port.aclose()

    with scripted_server(hang_up) as server:
        port, call = open_port(cls, server.url.replace("http:", "https:"))
        if hasattr(port, "aclose"):
            asyncio.run(ask(port, call))
        else:
            with pytest.raises(PortUnavailable):
                call()
            port.close()
    suites, groups = offers(server.requests[0].body)
    assert suites - {NO_SUITE} == TLS_1_3 | ECDHE
    assert groups == {P_256}
