"""The OpenAPI document that `serve` offers."""

import asyncio
from typing import Any

import httpx
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from incoming_payments.endpoints.openapi import openapi_document
from incoming_payments.server.description import with_document
from kits.memory_hosts import behind
from kits.processes import Bank, unsigned
from kits.service_kit import Service


def answer(method: str, path: str) -> httpx.Response:
    """Return the response to a request, with the base URL at /op and a mount at /proxied."""
    transport = httpx.ASGITransport(with_document(behind, Service().policy, "/proxied"))

    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path)

    return asyncio.run(send())


@pytest.mark.parametrize("path", ["/openapi.json", "/op/openapi.json", "/proxied/openapi.json"])
def test_document_is_served_with_and_without_the_mount(path: str) -> None:
    """A proxy may remove the path of the base URL. Pages of other origins may read the document."""
    shown, head = answer("GET", path), answer("HEAD", path)
    assert shown.json() == openapi_document(Service().policy)
    assert shown.headers["content-type"] == "application/json"
    assert shown.headers["access-control-allow-origin"] == "*"
    assert (head.headers, head.content) == (shown.headers, b"")


@pytest.mark.parametrize(("method", "path"), [("POST", "/openapi.json"), ("GET", "/x/openapi.json"), ("GET", "/")])
def test_other_requests_reach_the_application(method: str, path: str) -> None:
    """The document takes two methods at its own paths only."""
    assert answer(method, path).status_code == 418


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
