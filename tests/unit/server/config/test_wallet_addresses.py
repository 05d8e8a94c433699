"""`[wallet_addresses]` and `[[wallet_address]]`: their settings and errors."""

import re
from pathlib import Path
from typing import Final

import pytest

from incoming_payments.errors import ConfigurationError
from incoming_payments.server.config.setting import settings_of
from incoming_payments.server.config.settings import Settings, load_settings
from incoming_payments.server.config.wallet_addresses import WalletAddressesTable
from incoming_payments.server.init import CONFIGURATION

BASE: Final = "https://wallet.bank.example"


def configure(folder: Path, table: str, *, identifier: str = f"{BASE}/alice") -> None:
    """Replace the listed wallet address by `table`, and the identifier of the token's rights."""
    path = folder / CONFIGURATION
    text = path.read_text("utf-8")
    text, count = re.subn(r"(?ms)^\[\[?wallet_address(es)?\]\]?\n.*?\n\n", f"{table}\n\n", text)
    assert count == 1
    text, count = re.subn(r'identifier = ".*?"', f'identifier = "{identifier}"', text)
    assert count == 1
    path.write_text(text, "utf-8")


def loaded(folder: Path, settings: str, **options: str) -> Settings:
    """Return the settings in `folder` with these settings of `[wallet_addresses]`."""
    configure(folder, f"[wallet_addresses]\n{settings}", **options)
    return load_settings(folder / CONFIGURATION)


def test_table_is_loaded(folder: Path) -> None:
    """Base URLs get their canonical spelling. The other settings have defaults."""
    settings = loaded(folder, 'base_urls = ["https://Wallet.bank.example/"]')
    service = settings.given.wallet_addresses
    assert service is not None
    assert (service.bases, service.max_age_s, service.allow_private) == ((BASE,), 300, False)
    assert list(settings.wallet_addresses) == []


def test_every_setting_is_loaded(folder: Path) -> None:
    """Each setting has its own place."""
    given = {"base_urls": '["http://10.0.0.7/a", "https://b.example"]', "max_age_s": "10"}
    given["allow_private"] = "true"
    settings = loaded(
        folder, "\n".join(f"{name} = {value}" for name, value in given.items()), identifier="https://b.example/x"
    )
    assert set(given) == {setting.name for setting in settings_of(WalletAddressesTable)}
    expected = WalletAddressesTable(
        base_urls=("http://10.0.0.7/a", "https://b.example"), max_age_s=10, allow_private=True
    )
    assert settings.given.wallet_addresses == expected


def test_table_of_init_can_be_uncommented(folder: Path) -> None:
    """`init` writes the table as a comment. It shows the defaults of the optional settings."""
    path = folder / CONFIGURATION
    [shown] = re.findall(r"(?ms)^# \[wallet_addresses\]\n.*?\n\n", path.read_text("utf-8"))
    service = loaded(folder, "\n".join(re.findall(r"(?m)^# (\w+ = .*)$", shown))).given.wallet_addresses
    assert service == WalletAddressesTable(base_urls=(BASE,), max_age_s=300, allow_private=True)


def test_peer_of_any_asset_gets_no_warning(folder: Path) -> None:
    """The assets of wallet addresses are unknown until they are read, so every peer may be able to pay."""
    assert loaded(folder, f'base_urls = ["{BASE}"]').warnings == ()


WRONG: Final = [
    ("", "base_urls", "is missing: give an array"),
    (
        f'base_urls = "{BASE}"',
        "base_urls",
        'must be an array, not a string: write the value in brackets, such as base_urls = ["',
    ),
    (
        "base_urls = []",
        "base_urls",
        "must list one or more URLs that have no query: give the base URLs of your wallet addresses",
    ),
    ("base_urls = [1]", "base_urls[0]", "must be a string, not an integer"),
    ('base_urls = ["wallet.bank.example"]', "base_urls", "must be an absolute http or https URL"),
    (
        'base_urls = ["https://x.example/?a=b"]',
        "base_urls",
        "must list one or more URLs that have no query: give the base URLs of your wallet addresses",
    ),
    ('base_urls = ["http://x.example"]', "base_urls", "must be https URLs, unless allow_private is true"),
    ('base_urls = ["https://x.example/a%2fb"]', "base_urls", "must not contain %2F, %5C, %25 or dot segments,"),
    (f'base_urls = ["{BASE}"]\nmax_age_s = 9', "max_age_s", "must be an integer from 10 to 86400, not 9"),
    (f'base_urls = ["{BASE}"]\nallow_private = 1', "allow_private", "must be true or false, not an integer"),
    (f'base_urls = ["{BASE}"]\nallow_http = true', "allow_http", "is not a setting"),
]


@pytest.mark.parametrize(("table", "name", "says"), WRONG)
def test_error_names_the_setting(folder: Path, table: str, name: str, says: str) -> None:
    """A wrong setting is an error with the file and its name, before anything starts."""
    with pytest.raises(ConfigurationError) as caught:
        loaded(folder, table)
    assert caught.value.description.startswith(f"{folder / CONFIGURATION}: wallet_addresses.{name} {says}")
    assert caught.value.details["setting"] == f"wallet_addresses.{name}"


def test_listed_wallet_address_beside_the_table_is_refused(folder: Path) -> None:
    """A listed wallet address would stay open after the service has closed it."""
    listed = f'[[wallet_address]]\nurl = "{BASE}/alice"\nasset_code = "USD"\nasset_scale = 2\n'
    with pytest.raises(ConfigurationError) as caught:
        loaded(folder, f'base_urls = ["{BASE}"]\n{listed}')
    reason = "a listed wallet address would stay open after the other service has closed it"
    how = (
        "remove [[wallet_address]] if the other service keeps your wallet addresses, or else remove [wallet_addresses]"
    )
    expected = f"wallet_address and wallet_addresses are both given, but {reason}: {how}"
    assert caught.value.description.endswith(expected)
    assert caught.value.details["setting"] == "wallet_address"


@pytest.mark.parametrize("url", ["https://wallet.bank.example.evil/alice", f"{BASE}/..%2fadmin"])
def test_right_for_a_wallet_address_elsewhere_is_refused(folder: Path, url: str) -> None:
    """The identifier of a right must lie below a base URL, for every server that reads it."""
    with pytest.raises(ConfigurationError) as caught:
        loaded(folder, f'base_urls = ["{BASE}"]', identifier=url)
    assert caught.value.description.endswith(
        f"token[0].rights[0].identifier is not a wallet address of this configuration: {url}; use one below {BASE}"
    )
