"""The service in FastAPI, over HTTP, and its part of the OpenAPI document."""

import json
import time
from datetime import timedelta
from typing import Annotated, Any

import fastapi
import httpx
import pytest
from fastapi import Body, FastAPI
from pydantic import BaseModel, TypeAdapter

from incoming_payments.endpoints.open_payments import Request
from incoming_payments.hosts import asgi
from incoming_payments.hosts.fastapi import Error, IncomingPayment, PublicIncomingPayment, routes
from incoming_payments.wire import write_date_time
from kits.framework_checks import ID_PATH, asgi_application, check, check_refusals, client_at, wsgi_application
from kits.http_servers import serving_asgi
from kits.service_kit import JSON, PATH, Service, refusal

DAY = timedelta(days=1)
USD_25 = {"value": "2500", "assetCode": "USD", "assetScale": 2}


def an_app(service: Service, **options: Any) -> FastAPI:
    """Return an app with the routes of `service`. `options` are those of `include_router`."""
    app = FastAPI()
    app.include_router(routes(asgi_application(service)), **options)
    return app


def test_every_path_and_method_is_answered_by_the_service() -> None:
    """Payments, packets, HEAD, other methods and other paths below the service have its responses."""
    service = Service()
    with serving_asgi(an_app(service)) as port:
        check(service, port)


@pytest.mark.parametrize(("prefix", "root_path"), [("/op", ""), ("", "/op")])
def test_service_below_a_path_is_found(prefix: str, root_path: str) -> None:
    """The router works below the path of the base URL: by a prefix, or by the `root_path` of a server."""
    service = Service()
    with serving_asgi(an_app(service, prefix=prefix), root_path=root_path) as port:
        client = client_at(service, port)
        request = client.creation()
        arrives = f"{prefix}{PATH}"  # a server with a root_path adds it itself
        assert client.send(Request("POST", arrives, headers=request.headers, body=request.body)).status == 201


def test_responses_fit_the_models() -> None:
    """The resource, the public view and an error have exactly the members of their models."""
    service = Service()
    with serving_asgi(an_app(service)) as port:
        client = client_at(service, port)
        created = client.create(incomingAmount=USD_25, metadata={"a": 1}, expiresAt=write_date_time(service.now + DAY))
        public = client.send(Request("GET", json.loads(created.body)["id"].removeprefix("https://bank.example/op")))
        missing = client.send(Request("GET", ID_PATH))
        unknown = client.create(other=1)
    responses: list[tuple[Any, bytes]] = [
        (IncomingPayment, created.body),
        (PublicIncomingPayment, public.body),
        (Error, missing.body),
        (Error, unknown.body),
    ]
    for model, content in responses:
        members = json.loads(content)
        read = TypeAdapter(model).validate_python(members)
        assert list(members) and set(members) == set(read), model  # noqa: PT018


def test_openapi_document() -> None:
    """The document has both operations, with request, parameter and responses, and nothing of the other routes."""
    document = an_app(Service()).openapi()
    assert {path: list(operations) for path, operations in document["paths"].items()} == {
        PATH: ["post"],
        f"{PATH}/{{id}}": ["get"],
    }
    post, get = document["paths"][PATH]["post"], document["paths"][f"{PATH}/{{id}}"]["get"]
    requested = post["requestBody"]["content"]["application/json"]["schema"]
    assert (requested["required"], requested["properties"]["incomingAmount"]["title"]) == (["walletAddress"], "Amount")
    assert [parameter["name"] for parameter in get["parameters"]] == ["id"]
    models = {
        (status, json.dumps(answer["content"]["application/json"]["schema"]).count("#/components/schemas/"))
        for operation in (post, get)
        for status, answer in operation["responses"].items()
    }
    assert models == {("201", 1), ("200", 2), ("4XX", 1), ("5XX", 1)}


def test_document_keeps_the_models_of_the_host_apart() -> None:
    """The host may have models of the same names."""

    class Amount(BaseModel):
        cents: int

    app = an_app(Service())
    app.get("/balance", response_model=Amount)(lambda: None)
    references = json.dumps(app.openapi()).split('"#/components/schemas/')[1:]
    assert {reference.partition('"')[0] for reference in references} <= set(app.openapi()["components"]["schemas"])


def test_route_with_a_body_parameter(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """FastAPI has received the body: `body=` passes it on. Without it, a prompt 408 and a hint in the log follow."""
    monkeypatch.setattr(asgi, "BODY_START_S_MAX", 0.2)
    service = Service()
    payments = asgi_application(service)
    app = FastAPI()

    @app.post(PATH)
    async def create(request: fastapi.Request, content: Annotated[dict[str, Any], Body()]) -> fastapi.Response:
        assert "walletAddress" in content
        body = await request.body() if request.url.query else None
        answer = await payments.answer(request.scope, request.receive, body=body)
        return fastapi.Response(answer.body, answer.status, dict(answer.headers))

    with serving_asgi(app) as port:
        client = client_at(service, port)
        request = client.creation()
        assert client.send(client.sign(Request("POST", PATH, "read=1", [JSON], request.body))).status == 201
        assert caplog.records == []
        begin = time.monotonic()
        assert refusal(client.send(request)) == (408, "body_timeout")
        assert time.monotonic() - begin < 5
    assert "answer(..., body=...)" in caplog.text


def test_dependency_that_uses_up_the_body(caplog: pytest.LogCaptureFixture) -> None:
    """The client gets 400 at once, and the log says why."""
    service = Service()

    async def audit(request: fastapi.Request) -> None:
        async for _ in request.stream():
            pass

    with serving_asgi(an_app(service, dependencies=[fastapi.Depends(audit)])) as port:
        client = client_at(service, port)
        assert refusal(client.send(client.creation())) == (400, "incomplete_body")
    assert "answer(..., body=...)" in caplog.text


def test_dependency_that_reads_the_body() -> None:
    """Starlette keeps the body of the request, and a GET without a body needs no message of the server."""
    service = Service()

    async def audit(request: fastapi.Request) -> None:
        await request.body()

    app = an_app(service, dependencies=[fastapi.Depends(audit)])
    with serving_asgi(app) as port:
        client = client_at(service, port)
        begin = time.monotonic()
        assert refusal(client.send(Request("GET", ID_PATH))) == (404, "payment_not_found")
        assert time.monotonic() - begin < 2
        assert httpx.get(f"http://127.0.0.1:{port}{ID_PATH}", trust_env=False).status_code == 404
        assert client.create().status == 201


def test_another_object_than_an_asgi_application_is_refused() -> None:
    """The mistake is found at start, and not at the first request."""
    check_refusals(routes, wsgi_application(Service()), "an AsgiApplication, not")
