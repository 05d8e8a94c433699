"""Warnings about valid settings that are probably a mistake. `test_settings.py` tests that they name the file."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final

import pytest

from incoming_payments.domain.amount import Asset
from incoming_payments.gnap import AccessTokenInfo
from incoming_payments.server.config import advice
from incoming_payments.server.config.files import ServerSecret
from incoming_payments.server.config.packets import IlpTable
from incoming_payments.server.config.sweep import SweepTable
from incoming_payments.server.config.tables import TABLES, LimitsTable

NOW: Final = datetime(2026, 6, 1, tzinfo=UTC)
USD: Final = Asset("USD", 2)
OUTSIDE: Final = (
    "listen.host: {} is not a loopback address, and serve has no TLS and no limits for each client: "
    "put a reverse proxy in front of serve, and let no client reach this port"
)
PORTS: Final = (
    "base_url has port {}, but listen.port is {}: give both the same port, unless a proxy on this machine listens on "
    "port {}"
)
USELESS: Final = "peer[0] has the asset USD at scale 9, but no wallet address has this asset, so this peer cannot pay: "


def given(table: str, name: str, value: int) -> object:
    """Return a table with one changed setting."""
    changed: dict[str, Any] = {name: value}
    if table == "limits":
        return LimitsTable(**changed)
    if table == "sweep":
        return SweepTable(**changed)
    return IlpTable(address="test.bank", secret_files=(ServerSecret(b""),), **changed)


UNITS: Final = "ilp.tolerance_units is 101, which is more than one USD in the minor units of wallet_address[0]: "


@pytest.mark.parametrize(
    ("table", "name", "value", "reason"),
    [
        (
            "ilp",
            "margin_ms",
            0,
            "the usual values are 100 to 10000, because with a small margin the service loses the money",
        ),
        (
            "ilp",
            "margin_ms",
            20_000,
            "the usual values are 100 to 10000, because with a small margin the service loses the money",
        ),
        ("ilp", "tolerance_basis_points", 1001, "the usual values are 0 to 1000, because 100 is one percent"),
        ("sweep", "metadata_kept_s", 90, "the usual values are 86400 to 3162240000, because the value is in seconds"),
        ("limits", "expiry_s_max", 59, "the usual values are 60 to 316224000, because the value is in seconds"),
        ("limits", "idempotency_key_s", 599, "the usual values are 600 to 2678400, because the value is in seconds"),
        ("limits", "signature_age_s", 9, "the usual values are 10 to 3600, because a short limit refuses requests"),
        ("limits", "signature_age_s", 3601, "the usual values are 10 to 3600, because a short limit refuses requests"),
    ],
)
def test_unusual_value_gets_a_warning(table: str, name: str, value: int, reason: str) -> None:
    """The warning names the setting, the value, the usual range and the reason."""
    [warning] = advice.of_values(table, given(table, name, value))
    assert warning.startswith(f"{table}.{name} is {value}: {reason}")


def test_usual_values_and_defaults_get_no_warning() -> None:
    """Every default, and every end of a usual range, is usual."""
    for table in TABLES:
        for setting in table.settings:
            for value in (setting.default, *setting.usual) if setting.usual else ():
                assert list(advice.of_values(table.name, given(table.name, setting.name, value))) == []


@pytest.mark.parametrize(
    ("base_url", "host", "port", "mount", "expected"),
    [
        ("http://127.0.0.1:8080", "127.0.0.1", 8080, None, []),
        ("https://bank.example/op", "::1", 8080, "/op", []),
        ("https://bank.example", "localhost", 8080, "", []),
        ("https://bank.example", "192.0.2.1", 8080, None, [OUTSIDE.format("192.0.2.1")]),
        ("https://bank.example", "bank.example", 8080, None, [OUTSIDE.format("bank.example")]),
        (
            "http://localhost:8080",
            "127.0.0.1",
            9000,
            None,
            [PORTS.format(8080, 9000, 8080)],
        ),
        (
            "https://127.0.0.1",
            "127.0.0.1",
            8443,
            None,
            [PORTS.format(443, 8443, 443)],
        ),
        (
            "https://bank.example/incoming-payments",
            "127.0.0.1",
            8080,
            "/x/incoming-payments",
            [
                (
                    f"{name} ends in /incoming-payments, and the service would add that path once more: remove "
                    f"the path from {name}"
                )
                for name in ("base_url", "listen.mount")
            ],
        ),
    ],
)
def test_address_that_clients_cannot_use_gets_a_warning(
    base_url: str, host: str, port: int, mount: str | None, expected: list[str]
) -> None:
    """`base_url`, `mount` and the address to listen on must fit each other."""
    assert list(advice.of_listen(base_url, host, port, mount)) == expected


def test_expired_token_gets_a_warning() -> None:
    """The server starts with an expired token, because a token may expire before any restart."""
    east = timezone(timedelta(hours=5))
    times = (None, NOW + timedelta(seconds=1), NOW, datetime(2020, 1, 1, 5, tzinfo=east).astimezone(UTC))
    tokens = [AccessTokenInfo("client", {}, [], time) for time in times]
    how = "requests with this token are refused with token_expired; write a later time, or remove the token"
    assert list(advice.of_tokens(tokens, NOW)) == [
        f"token[2].expires_at is 2026-06-01T00:00:00Z, which has passed: {how}",
        f"token[3].expires_at is 2020-01-01T00:00:00Z, which has passed: {how}",
    ]


@pytest.mark.parametrize(
    ("hosted", "peer", "units", "expected"),
    [
        (USD, USD, 100, []),
        (Asset("JPY", 0), Asset("JPY", 0), 1, []),
        (
            Asset("usd", 2),
            Asset("usd", 2),
            1,
            [
                f'{name}.asset_code is "usd": write "USD", unless clients and peers use lower case too. The '
                "service compares codes exactly, and the codes of ISO 4217 are in upper case"
                for name in ("wallet_address[0]", "peer[0]")
            ],
        ),
        (
            Asset("XYZ", 20),
            Asset("XYZ", 20),
            1,
            [
                f"{name}.asset_scale is 20, so the largest possible amount is less than one XYZ: write the number of "
                "digits after the decimal point, such as 2 for cents"
                for name in ("wallet_address[0]", "peer[0]")
            ],
        ),
        (
            USD,
            Asset("USD", 9),
            1,
            [f"{USELESS}correct asset_code and asset_scale, or add a wallet address with this asset"],
        ),
        (
            USD,
            USD,
            101,
            [f"{UNITS}write the number of minor units by which a packet may exceed incomingAmount, such as 1"],
        ),
    ],
)
def test_asset_that_is_a_mistake_gets_a_warning(hosted: Asset, peer: Asset, units: int, expected: list[str]) -> None:
    """A lower-case code, a scale in place of something else, and assets that do not match."""
    assert list(advice.of_assets({"wallet_address[0]": hosted}, {"peer[0]": peer}, units)) == expected
