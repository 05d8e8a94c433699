"""Requests of the published clients, built from their sources, over HTTP to a running `serve`.

`clients` has the recipes. `docs/compatibility.md` shows the answers that these tests expect.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from campaigns.interop.clients.everything import CLIENTS
from campaigns.interop.clients.recipe import Account, Call, Client
from kits.processes import Bank
from kits.raw_http import answers, as_bytes, exchange

CASES: Final = [(client, call) for client in CLIENTS for call in client.cases]
IDS: Final = [f"{client.id}-{call.replace(' ', '-')}" for client, call in CASES]


@contextmanager
def a_bank(folder: Path, *settings: str) -> Iterator[Bank]:
    """Run `serve` with these settings of `[limits]`."""
    bank = Bank.init(folder)
    for setting in settings:
        name = setting.partition(" = ")[0]
        [line] = re.findall(rf"^# {name} = .*$", bank.configuration.read_text("utf-8"), re.MULTILINE)
        bank.edit(line, setting)
    with bank.serving():
        yield bank


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bank]:
    """Run `serve` with the default settings."""
    with a_bank(tmp_path_factory.mktemp("default")) as bank:
        yield bank


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bank]:
    """Run `serve` with the settings that the clients need."""
    settings = ('signature_shapes = ["php-sdk", "rust-sdk"]', "trailing_slash = true")
    with a_bank(tmp_path_factory.mktemp("tuned"), *settings) as bank:
        yield bank


def an_account(bank: Bank) -> Account:
    """Return the account of the client of `bank`, which has created a payment."""
    client = bank.client
    return Account(
        base_url=bank.base_url,
        wallet_address=f"{bank.base_url}/alice",
        token=client.token,
        key=client.key,
        now_s=int(datetime.now(UTC).timestamp()),
        payment=client.create().json()["id"],
    )


def send(bank: Bank, client: Client, call: Call) -> bytes:
    """Send the request of `client` as it is, and return the bytes of the response."""
    account = an_account(bank)
    return exchange(bank.port, as_bytes(client.cases[call].build(account), bank.base_url))


@pytest.mark.parametrize(("client", "call"), CASES, ids=IDS)
def test_request_to_the_default_service(default: Bank, client: Client, call: Call) -> None:
    """A service with its default settings gives the answer that the table shows."""
    assert answers(send(default, client, call)) == [client.cases[call].default]


@pytest.mark.parametrize(("client", "call"), CASES, ids=IDS)
def test_request_to_the_tuned_service(tuned: Bank, client: Client, call: Call) -> None:
    """A service with the settings for all clients gives the answer that the table shows."""
    assert answers(send(tuned, client, call)) == [client.cases[call].tuned]


@pytest.mark.parametrize("client", [client for client in CLIENTS if client.cases["create"].tuned == (201, None)])
def test_created_payment_has_the_terms_of_the_request(tuned: Bank, client: Client) -> None:
    """The payment has the wallet address, amount, expiry and metadata of the body, whatever their spelling."""
    account = an_account(tuned)
    request = client.cases["create"].build(account)
    payment = json.loads(exchange(tuned.port, as_bytes(request, tuned.base_url)).partition(b"\r\n\r\n")[2])
    asked = json.loads(request.body)
    moments = [datetime.fromisoformat(document.pop("expiresAt")) for document in (asked, payment)]
    assert moments[0] == moments[1]
    assert {name: payment[name] for name in asked} == asked
    assert payment["id"].rpartition("/")[0] == account.collection


def test_settings_of_each_client_are_those_of_the_tuned_service() -> None:
    """The settings that the table names are the settings with which the tests run."""
    known = {'signature_shapes = ["rust-sdk"]', 'signature_shapes = ["php-sdk"]', "trailing_slash = true"}
    assert {setting for client in CLIENTS for setting in client.settings} == known
    for client in CLIENTS:
        changed = any(case.default != case.tuned for case in client.cases.values())
        assert changed == bool(client.settings)
