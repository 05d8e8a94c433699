"""The part of a configuration that describes the ILP receiver and its peers."""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from attrs import Attribute, frozen

from incoming_payments.domain.amount import Asset, Tolerance
from incoming_payments.endpoints.packets import ILP_PATH, HttpPeer, PacketPolicy
from incoming_payments.ilp import DerivedMethods, Peer, Receiver
from incoming_payments.limits import (
    EXCESS_BASIS_POINTS_DEFAULT,
    EXCESS_BASIS_POINTS_MAX,
    EXCESS_UNITS_DEFAULT,
    PEER_TOKENS_MAX,
    PREPARE_MARGIN_MS_DEFAULT,
    PREPARE_MARGIN_MS_MAX,
    SERVER_SECRETS_MAX,
)
from incoming_payments.server.config.files import PeerToken, ServerSecret
from incoming_payments.server.config.reader import Once, naming
from incoming_payments.server.config.setting import invalid, setting

_PEER_NAME: Final = re.compile(r"[A-Za-z0-9_~-]{1,64}")


def files(most: int) -> Callable[[object, "Attribute[Any]", Sequence[object]], None]:
    """Return a validator for the contents of 1 to `most` files."""

    def check(_: object, attribute: "Attribute[Any]", contents: Sequence[object]) -> None:
        if not 1 <= len(contents) <= most:
            raise invalid(attribute, f"must name 1 to {most} files, but names {len(contents)}")

    return check


def _check_name(_: object, attribute: "Attribute[str]", name: str) -> None:
    if not _PEER_NAME.fullmatch(name):
        text = "must be 1 to 64 letters, digits and _~-, so that it can be a segment of an ILP address"
        raise invalid(attribute, text)


@frozen(kw_only=True)
class IlpTable:
    """The receiver of ILP packets."""

    address: str = setting(
        "the ILP address of this service. The address of a payment has one more segment", written='"test.bank"'
    )
    secret_files: tuple[ServerSecret, ...] = setting(
        "files that each contain a secret, newest first. A secret is 32 random bytes or more in hexadecimal. "
        "The service derives addresses and shared secrets from it, so each secret can decrypt STREAM packets. "
        "To rotate the secret, put a new file in front. Remove an old secret when all payments that were created "
        "with it have completed or expired",
        check=files(SERVER_SECRETS_MAX),
        written='["{secret}"]',
    )
    path: str = setting("the path below `base_url` to which peers send ILP packets; not `/incoming-payments`", ILP_PATH)
    tolerance_units: int = setting(
        "by how many minor units a packet may exceed `incomingAmount`, unless `tolerance_basis_points` allows more",
        EXCESS_UNITS_DEFAULT,
    )
    tolerance_basis_points: int = setting(
        "by how many hundredths of a percent a packet may exceed `incomingAmount`, unless `tolerance_units` allows "
        "more",
        EXCESS_BASIS_POINTS_DEFAULT,
        bounds=(0, EXCESS_BASIS_POINTS_MAX),
        usual=(0, 1000),
        unusual="100 is one percent, and the service accepts an excess of this share",
    )
    margin_ms: int = setting(
        "how many milliseconds before its expiry a packet must be credited, so that the reply arrives in "
        "time. A peer does not pay for a packet with a late reply",
        PREPARE_MARGIN_MS_DEFAULT,
        bounds=(0, PREPARE_MARGIN_MS_MAX),
        usual=(100, 10_000),
        unusual="with a small margin the service loses the money of packets with a late reply, and with a "
        "large margin it refuses packets that have enough time",
    )


@frozen(kw_only=True)
class PeerTable:
    """A peer, which sends ILP packets."""

    name: str = setting("1 to 64 letters, digits and `_~-`", check=_check_name, written='"connector"')
    asset_code: str = setting(
        "the asset of the account with this peer. The peer can pay only payments in the same asset", written='"USD"'
    )
    asset_scale: int = setting("the scale of `asset_code`: 2 for cents", written="2")
    token_files: tuple[PeerToken, ...] = setting(
        "1 to 8 files, each with one bearer token of 16 characters or more. Each token is valid. To replace a "
        "token, add the new token, let the peer switch to the new token, and remove the old token",
        check=files(PEER_TOKENS_MAX),
        written='["{peer_token}"]',
    )
    ilp_address: str | None = setting(
        "the ILP address that the service gives to the peer on an ILDCP request",
        None,
        "the `address` of the service, a dot, and the `name` of the peer",
        written='"test.bank.connector"',
    )


def packets_of(ilp: IlpTable, peers: Sequence[PeerTable]) -> tuple[Receiver, PacketPolicy]:
    """Return the receiver of `[ilp]`, and its peers. Raises `ConfigurationError`."""
    once = Once()
    for place, secret in enumerate(ilp.secret_files):
        once.add(secret.hex(), f"ilp.secret_files[{place}]", "give each secret only once")
    with naming("ilp", ilp, ilpAddress="address", units="tolerance_units"):
        methods = DerivedMethods(ilp.address, ilp.secret_files)
        tolerance = Tolerance(ilp.tolerance_units, ilp.tolerance_basis_points)
        receiver = Receiver(methods, tolerance, ilp.margin_ms)
    names, found = Once(), []
    for place, table in enumerate(peers):
        path = f"peer[{place}]"
        names.add(table.name, f"{path}.name", f"give {table.name} to one peer only")
        for number, token in enumerate(table.token_files):
            once.add(token.value, f"{path}.token_files[{number}]", "give each file a different token")
        address = f"{methods.prefix}.{table.name}" if table.ilp_address is None else table.ilp_address
        with naming(path, table):
            asset = Asset(table.asset_code, table.asset_scale)
            found.append(HttpPeer(Peer(address, asset), table.token_files))
    with naming("ilp", ilp):
        return receiver, PacketPolicy(peers=found, path=ilp.path)
