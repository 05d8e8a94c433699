"""The service in FastAPI, with entries for its requests and responses in the OpenAPI document."""

# ruff: noqa: UP013 - a class for each of the small models would be four times as long
from datetime import datetime
from typing import Any, Literal, NotRequired

from fastapi import APIRouter, Request, Response
from pydantic import TypeAdapter
from starlette.requests import ClientDisconnect
from typing_extensions import TypedDict

from incoming_payments.hosts._paths import require_application
from incoming_payments.hosts.asgi import AsgiApplication, Message

Amount = TypedDict("Amount", {"value": str, "assetCode": str, "assetScale": int})
IlpMethod = TypedDict("IlpMethod", {"type": Literal["ilp"], "ilpAddress": str, "sharedSecret": str})
PublicIncomingPayment = TypedDict("PublicIncomingPayment", {"receivedAmount": Amount, "authServer": str})
Problem = TypedDict("Problem", {"code": str, "description": str, "details": NotRequired[dict[str, Any]]})
Error = TypedDict("Error", {"error": Problem})


class NewIncomingPayment(TypedDict):
    walletAddress: str
    incomingAmount: NotRequired[Amount]
    expiresAt: NotRequired[datetime]
    metadata: NotRequired[dict[str, Any]]


class IncomingPayment(NewIncomingPayment):
    id: str
    completed: bool
    receivedAmount: Amount
    createdAt: datetime
    updatedAt: datetime
    methods: list[IlpMethod]


def routes(application: AsgiApplication) -> APIRouter:
    """Return a router for `app.include_router`: every method, at the paths of `application` and below.

    Raises `ConfigurationError` unless `application` is an `AsgiApplication`.
    """
    require_application(application, AsgiApplication)

    async def create_incoming_payment(request: Request) -> Response:
        parts = request.stream()  # this stream yields the body even if a dependency has already read the body

        async def receive() -> Message:
            try:
                body = await anext(parts, b"")
            except (ClientDisconnect, RuntimeError):  # a RuntimeError means that other code has read the stream
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": body, "more_body": bool(body)}

        answer = await application.answer(request.scope, receive)
        return Response(answer.body, answer.status, dict(answer.headers))

    async def get_incoming_payment(request: Request, id: str) -> Response:  # noqa: ARG001 - OpenAPI shows id
        return await create_incoming_payment(request)

    schema = TypeAdapter(NewIncomingPayment).json_schema()
    schema["properties"]["incomingAmount"] = schema.pop("$defs")["Amount"]  # OpenAPI does not support `$defs`
    body = {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
    path, read = application.paths[0], IncomingPayment | PublicIncomingPayment
    router = APIRouter(tags=["Open Payments"], responses={"4XX": {"model": Error}, "5XX": {"model": Error}})
    router.post(path, status_code=201, response_model=IncomingPayment, openapi_extra=body)(create_incoming_payment)
    router.get(f"{path}/{{id}}", response_model=read)(get_incoming_payment)
    for path in application.paths:  # the service itself answers other methods and paths with errors
        for below in ("", "/{_:path}"):
            # Starlette accepts any ASGI application here, but its annotation does not say so.
            router.add_route(path + below, application, include_in_schema=False)  # type: ignore[arg-type]
    return router
