"""A real client: npm @interledger/open-payments calls a real `serve` process, and validates the responses."""

import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from incoming_payments.httpsig import PrivateKey
from incoming_payments.server.init import CLIENT_JWK, CLIENT_KEY, CONFIGURATION
from kits import node_packages
from kits.processes import COMMAND, HttpClient, free_port, run_command, serving

PACKAGE: Final = "@interledger/open-payments"
VERSION: Final = "7.4.0"
SCRIPT: Final = Path(__file__).with_name("node_client.mjs")
READ_ONLY_TOKEN: Final = "READ-ONLY-TOKEN"
MANAGE_TOKEN: Final = "MANAGE-TOKEN"
UNKNOWN_ID: Final = "019b76da-a800-7000-8000-000000000000"


@pytest.fixture(scope="module")
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the client is installed."""
    return node_packages.installed({PACKAGE: VERSION}, request, tmp_path_factory)


@pytest.fixture(scope="module")
def results(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the result of each call of the client."""
    folder, port = tmp_path_factory.mktemp("service"), free_port()
    assert run_command("init", folder, "--port", str(port)).returncode == 0
    with (folder / CONFIGURATION).open("a", encoding="utf-8") as configuration:
        for token, actions in ((READ_ONLY_TOKEN, '"read"'), (MANAGE_TOKEN, '"complete", "list"')):
            configuration.write(
                f'[[token]]\nvalue = "{token}"\njwk_file = "{CLIENT_JWK}"\n'
                f'client = "http://127.0.0.1:{port}/a-client"\nrights = [{{ actions = [{actions}] }}]\n'
            )
    client = HttpClient.of(folder, f"http://127.0.0.1:{port}")
    wanted = a_request(client, "USD")
    given = {
        "installed": str(installed),
        "baseUrl": client.base_url,
        "client": f"{client.base_url}/a-client",
        "keyId": client.key.kid,
        "privateKey": str(folder / CLIENT_KEY),
        "forgedKey": PrivateKey.generate_ed25519(client.key.kid).to_pem().decode(),
        "token": client.token,
        "readOnlyToken": READ_ONLY_TOKEN,
        "manageToken": MANAGE_TOKEN,
        "wanted": wanted,
        "wrongAsset": a_request(client, "EUR"),
        "unknownPayment": f"{client.base_url}/incoming-payments/{UNKNOWN_ID}",
    }
    with serving([*COMMAND, "serve", "--config", folder / CONFIGURATION], port, folder / "log"):
        node = ["node", str(SCRIPT), json.dumps(given)]
        done = subprocess.run(node, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(done.stdout)
    return {**results, "wanted": wanted, "base_url": client.base_url}


def a_request(client: HttpClient, asset_code: str) -> dict[str, object]:
    """Return a create request with every member."""
    return {
        "walletAddress": f"{client.base_url}/alice",
        "incomingAmount": {"value": "2500", "assetCode": asset_code, "assetScale": 2},
        "expiresAt": (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "metadata": {"externalRef": "INV-2026-0042", "lines": [{"ünïcode": "€ 25"}]},
    }


def answer(results: dict[str, Any], call: str) -> Any:
    """Return the response to a call that succeeded."""
    assert "error" not in results[call], results[call]
    return results[call]["answer"]


def test_it_creates_a_payment(results: dict[str, Any]) -> None:
    """The client accepts the resource of a payment with amount, expiry and metadata."""
    payment, wanted = answer(results, "created"), results["wanted"]

    nothing = {"value": "0", "assetCode": "USD", "assetScale": 2}
    assert wanted == {name: payment[name] for name in wanted}
    assert (nothing, False) == (payment["receivedAmount"], payment["completed"])
    assert payment["id"].startswith(f"{results['base_url']}/incoming-payments/")
    assert [method["type"] for method in payment["methods"]] == ["ilp"]


def test_it_creates_a_payment_without_terms(results: dict[str, Any]) -> None:
    """A payment without amount and expiry leaves these members out."""
    payment = answer(results, "least")

    there = ["completed", "createdAt", "id", "methods", "receivedAmount", "updatedAt", "walletAddress"]
    assert there == sorted(payment)


def test_it_reads_a_payment(results: dict[str, Any]) -> None:
    """The client reads the same resource, and accepts it."""
    assert answer(results, "created") == answer(results, "read")


def test_it_reads_a_payment_publicly(results: dict[str, Any]) -> None:
    """The unauthenticated client reads the public view, and accepts it."""
    public = {
        "receivedAmount": answer(results, "created")["receivedAmount"],
        "authServer": f"{results['base_url']}/auth",
    }
    assert public == answer(results, "readPublicly")


def test_it_lists_payments(results: dict[str, Any]) -> None:
    """The client accepts each page, and goes from page to page by the cursors."""
    newest, oldest = answer(results, "least")["id"], answer(results, "created")["id"]
    pages = {
        name: ([item["id"] for item in answer(results, name)["result"]], answer(results, name)["pagination"])
        for name in ("list", "firstPage", "nextPage", "previousPage", "emptyPage")
    }
    first, last = (id.rpartition("/")[2] for id in (newest, oldest))
    assert pages == {
        "list": ([newest, oldest], pagination(first, last)),
        "firstPage": ([newest], pagination(first, first, has_next=True)),
        "nextPage": ([oldest], pagination(last, last, has_previous=True)),
        "previousPage": ([newest], pagination(first, first, has_next=True)),
        "emptyPage": ([], {"hasNextPage": False, "hasPreviousPage": True}),
    }


def pagination(start: str, end: str, *, has_next: bool = False, has_previous: bool = False) -> dict[str, object]:
    """Return the `pagination` of a page."""
    return {"startCursor": start, "endCursor": end, "hasNextPage": has_next, "hasPreviousPage": has_previous}


def test_it_completes_a_payment(results: dict[str, Any]) -> None:
    """The client accepts the completed payment, also for a repeated request, and finds it completed in the list."""
    completed = answer(results, "completed")
    read = answer(results, "created")
    assert completed == {
        **{name: value for name, value in read.items() if name not in {"methods", "updatedAt"}},
        "completed": True,
    }
    assert completed == answer(results, "completedAgain")
    assert completed in answer(results, "listCompleted")["result"]


ERRORS: Final = [
    ("wrongAsset", 400, "asset_mismatch", "incomingAmount must be in USD at scale 2"),
    ("missingRight", 401, "insufficient_rights", "the access token has no right to create"),
    ("unknownToken", 401, "invalid_token", "the access token is not active"),
    ("unknownPayment", 404, "payment_not_found", "there is no such incoming payment"),
    ("forgedRead", 401, "signature_invalid", "the signature does not fit the key"),
    ("foreignList", 401, "insufficient_rights", "the access token has no right to list"),
    ("foreignCursor", 400, "unknown_cursor", "the cursor is not a payment of this list"),
    ("bothDirections", 400, "invalid_query", "first and last exclude each other"),
    ("completedWithoutRight", 401, "insufficient_rights", "the access token has no right to complete"),
    ("forgedCreate", 401, "signature_invalid", "the signature does not fit the key"),
]


@pytest.mark.parametrize(("call", "status", "code", "description"), ERRORS)
def test_its_errors_carry_ours(results: dict[str, Any], call: str, status: int, code: str, description: str) -> None:
    """The client's own error carries the status, code and description of the service."""
    error = results[call]["error"]

    assert ("OpenPaymentsClientError", status, code) == (error["name"], error["status"], error["code"])
    assert error["description"].startswith(description)


def test_its_errors_carry_details(results: dict[str, Any]) -> None:
    """The client's error has the invalid member in its details."""
    assert results["wrongAsset"]["error"]["details"] == {"member": "incomingAmount"}


@pytest.mark.parametrize("call", ["wrongService", "wrongPublicly"])
def test_it_does_validate(results: dict[str, Any], call: str) -> None:
    """The client refuses a response that the OpenAPI forbids, so its validation is on."""
    assert results[call]["error"]["description"] == "Could not validate OpenAPI response"
    assert results[call]["error"]["validationErrors"]
