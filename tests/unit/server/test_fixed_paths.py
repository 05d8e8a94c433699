"""The health endpoints of `serve`, which reveal nothing else to strangers, and its OpenAPI document."""

import asyncio
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from incoming_payments.endpoints.openapi import openapi_document
from incoming_payments.errors import StoreUnavailable
from incoming_payments.flows.machinery.ports import AsyncPorts
from incoming_payments.server.config.settings import load_settings
from incoming_payments.server.connections import Connections
from incoming_payments.server.fixed_paths import with_document, with_health
from incoming_payments.server.init import CONFIGURATION
from incoming_payments.server.serve import build
from incoming_payments.service import AsyncIncomingPayments
from incoming_payments.stores.sqlite import AsyncSqliteStore
from kits.fake_ports import Raising
from kits.memory_hosts import behind
from kits.processes import Bank, free_port, token_in, unsigned
from kits.service_kit import Service

DOWN: Final = Raising(StoreUnavailable("the disk /var/secret-place is full"))


def answers(store: object, *requests: tuple[str, str]) -> list[httpx.Response]:
    """Return the responses to `requests`, method and path, of a service with `store`."""
    service = AsyncIncomingPayments(policy=Service().policy, ports=AsyncPorts(store=store))  # type: ignore[arg-type]
    transport = httpx.ASGITransport(with_health(behind, service))

    async def send() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return [await client.request(method, path) for method, path in requests]

    return asyncio.run(send())


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(("store", "ready"), [(Service().store, 200), (DOWN, 503)])
def test_store_decides_about_readiness_and_nothing_about_liveness(method: str, store: object, ready: int) -> None:
    """The responses have no body and no field that describes the program or the failure."""
    live, readiness = answers(store, (method, "/healthz"), (method, "/readyz"))
    assert [live.status_code, readiness.status_code] == [200, ready]
    for response in (live, readiness):
        assert response.content == b""
        assert dict(response.headers) == {"content-length": "0", "cache-control": "no-store"}


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/healthz"), ("GET", "/healthz/"), ("GET", "/op/readyz"), ("GET", "/")]
)
def test_other_requests_reach_the_application(method: str, path: str) -> None:
    """The endpoints take two paths and two methods only."""
    [response] = answers(DOWN, (method, path))
    assert (response.status_code, response.content) == (418, b"behind")


def test_health_can_be_switched_off(folder: Path) -> None:
    """With `health = false` the paths are as unknown as any other."""
    path = folder / CONFIGURATION
    statuses = []
    for setting in ("true", "false"):
        path.write_text(path.read_text("utf-8").replace("# health = true", "health = true"), "utf-8")
        path.write_text(path.read_text("utf-8").replace("health = true", f"health = {setting}"), "utf-8")

        async def get() -> int:
            settings = load_settings(path)
            async with AsyncSqliteStore(folder / "payments.sqlite3") as store:
                transport = httpx.ASGITransport(build(settings, store, Connections(settings.given)))
                async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                    return (await client.get("/readyz")).status_code

        statuses.append(asyncio.run(get()))
    assert statuses == [200, 404]


def test_process_reports_health_and_metrics_and_logs_no_secret(bank: Bank) -> None:
    """A real process answers the checks of an orchestrator and Prometheus. Its log holds no token and no secret."""
    metrics_port = free_port()
    bank.edit("# metrics_port = 9464", f"metrics_port = {metrics_port}")
    bank.edit("# explain_signatures = false", "explain_signatures = true")
    with bank.serving():
        created = bank.client.create()
        refused = unsigned("GET", created.json()["id"], headers={"authorization": f"GNAP {token_in(bank.folder)}"})
        checks = [unsigned("GET", f"{bank.base_url}{path}").status_code for path in ("/healthz", "/readyz")]
        metrics = unsigned("GET", f"http://127.0.0.1:{metrics_port}/metrics").text
    assert (created.status_code, refused.status_code, checks) == (201, 401, [200, 200])
    labels = 'error_type="",http_request_method="POST",http_response_status_code="201",http_route="/incoming-payments"'
    assert f"http_server_request_duration_seconds_count{{{labels}}} 1.0" in metrics
    assert 'incoming_payments_store_batch_duration_seconds_count{outcome="committed"}' in metrics
    assert "python_info" not in metrics
    output = bank.log.read_text("utf-8")
    assert "signature refused" in output
    secrets = [token_in(bank.folder), created.json()["methods"][0]["sharedSecret"]]
    secrets += [file.read_text("utf-8").strip() for file in bank.folder.iterdir() if file.suffix in {".hex", ".txt"}]
    secrets += (line for file in bank.folder.glob("*.pem") for line in file.read_text("utf-8").splitlines()[1:-1])
    assert len(secrets) >= 4
    assert [secret for secret in secrets if secret in output] == []


def description(method: str, path: str) -> httpx.Response:
    """Return the response to a request, with the base URL at /op and a mount at /proxied."""
    transport = httpx.ASGITransport(with_document(behind, Service().policy, "/proxied"))

    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path)

    return asyncio.run(send())


@pytest.mark.parametrize("path", ["/openapi.json", "/op/openapi.json", "/proxied/openapi.json"])
def test_document_is_served_with_and_without_the_mount(path: str) -> None:
    """A proxy may remove the path of the base URL. Pages of other origins may read the document."""
    shown, head = description("GET", path), description("HEAD", path)
    assert shown.json() == openapi_document(Service().policy)
    assert shown.headers["content-type"] == "application/json"
    assert shown.headers["access-control-allow-origin"] == "*"
    assert (head.headers, head.content) == (shown.headers, b"")


@pytest.mark.parametrize(("method", "path"), [("POST", "/openapi.json"), ("GET", "/x/openapi.json"), ("GET", "/")])
def test_other_requests_for_a_document_reach_the_application(method: str, path: str) -> None:
    """The document takes two methods at its own paths only."""
    assert description(method, path).status_code == 418


def test_lifespan_reaches_the_application() -> None:
    """Messages of the server, which have no path, are passed on."""
    sent = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def live() -> None:
        await with_document(behind, Service().policy, None)({"type": "lifespan"}, receive, send)

    asyncio.run(live())
    assert sent[1]["body"] == b"behind"


def test_process_serves_its_document(bank: Bank) -> None:
    """A real process serves a valid document that names its own base URL."""
    with bank.serving():
        document = unsigned("GET", f"{bank.base_url}/openapi.json").json()
    OpenAPIV31SpecValidator(document).validate()
    assert document["servers"] == [{"url": bank.base_url}]
