"""The published OpenAPI document of Open Payments, which npm @interledger/open-payments carries, and our responses."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from campaigns.interop.published_schema import PACKAGE, VERSION, complaints
from campaigns.openapi.campaign import service
from kits import node_packages
from kits.openapi_kit import DOCUMENT
from kits.processes import unsigned

COLLECTION: Final = "/incoming-payments"
PAYMENT: Final = "/incoming-payments/{id}"


@pytest.fixture(scope="module")
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the package is installed."""
    return node_packages.installed({PACKAGE: VERSION}, request, tmp_path_factory)


@pytest.fixture(scope="module")
def responses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return responses of `serve`, of each kind that the published document describes."""
    with service(tmp_path_factory.mktemp("service")) as client:
        query = f"{COLLECTION}?wallet-address={client.base_url}/alice"
        asset = {"assetCode": "USD", "assetScale": 2}
        later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        made = {
            "empty page": (COLLECTION, client.send("GET", query)),
            "least": (COLLECTION, client.create()),
            "most": (
                COLLECTION,
                client.create(
                    incomingAmount={"value": "5", **asset}, expiresAt=later, metadata={"a": {"b": [1, None]}}
                ),
            ),
        }
        url = made["most"][1].json()["id"]
        path = url.removeprefix(client.base_url)
        made |= {
            "read": (PAYMENT, client.get(url)),
            "public": (PAYMENT, unsigned("GET", url)),
            "page": (COLLECTION, client.send("GET", f"{query}&first=1")),
            "completed": (f"{PAYMENT}/complete", client.send("POST", f"{path}/complete")),
            "completed again": (f"{PAYMENT}/complete", client.send("POST", f"{path}/complete")),
            "read completed": (PAYMENT, client.get(url)),
            "no signature": (COLLECTION, unsigned("POST", f"{client.base_url}{COLLECTION}")),
            "not found": (PAYMENT, client.get(f"{url}x")),
        }
    return {
        name: {
            "path": path,
            "method": response.request.method.lower(),
            "status": response.status_code,
            "body": response.json(),
        }
        for name, (path, response) in made.items()
    }


def test_responses_are_as_published(installed: Path, responses: dict[str, dict[str, Any]]) -> None:
    """The published document accepts our responses, of every operation."""
    assert sorted(one["status"] for one in responses.values()) == [200] * 7 + [201] * 2 + [401, 404]
    assert dict(zip(responses, complaints(installed, list(responses.values())), strict=True)) == dict.fromkeys(
        responses
    )


def test_published_document_does_refuse(installed: Path, responses: dict[str, dict[str, Any]]) -> None:
    """The published document refuses a response with a changed member, so the validation works."""
    wrong = []
    for name in ("least", "read", "page", "completed"):
        changed = json.loads(json.dumps(responses[name]))
        payment = changed["body"]["result"][0] if name == "page" else changed["body"]
        payment["completed"] = "no"
        wrong.append(changed)
    assert None not in complaints(installed, wrong)


def test_operations_have_the_published_paths_and_ids(installed: Path) -> None:
    """A client that is generated from our document has the published operations, under their names."""
    yaml = pytest.importorskip("yaml")
    folder = installed / "node_modules" / PACKAGE / "dist" / "openapi" / "specs"
    published = yaml.safe_load((folder / "resource-server.yaml").read_text("utf-8"))["paths"]
    for path, methods in published.items():
        if path.startswith(COLLECTION):
            for method in methods.keys() & {"get", "post"}:
                assert DOCUMENT["paths"][path][method]["operationId"] == methods[method]["operationId"]
