"""The OpenAPI documents of the service and of its events, and the JSON Schema of its webhooks.

`docs/openapi.py` writes the OpenAPI document of the service to `openapi.json` in this package. `pull.json` is the
document of the requests that pull events. `webhooks.json` is the schema of an event, which `pull.json` does not repeat.
"""

import json
from importlib.resources import files
from typing import Any, Final

from incoming_payments.flows.policy import COLLECTION_PATH, ServicePolicy

_TEXT: Final = files(__package__).joinpath("openapi.json")
_PULL: Final = files(__package__).joinpath("pull.json")
_WEBHOOKS: Final = files(__package__).joinpath("webhooks.json")


def openapi_document(policy: ServicePolicy) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of a service with this `policy`, which a host can serve as JSON.

    The only server in the document is `policy.base_url`. If `policy` forbids the public view or the preflight request
    of browsers, the document leaves them out.

    >>> policy = ServicePolicy(base_url="https://bank.example/op", auth_server="https://auth.bank.example")
    >>> openapi_document(policy)["servers"]
    [{'url': 'https://bank.example/op'}]
    """
    document: dict[str, Any] = json.loads(_TEXT.read_text("utf-8"))
    document["servers"] = [{"url": policy.base_url}]
    payment = document["paths"][f"{COLLECTION_PATH}/{{id}}"]
    if not policy.public_get:
        for method in ("get", "head"):
            payment[method]["security"].remove({})
    if not (policy.public_get and policy.public_cors):
        del payment["options"]
    return document


def webhook_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the body of a webhook, with an example of each type.

    >>> webhook_schema()["properties"]["type"]["enum"]
    ['payment.created', 'payment.credited', 'payment.completed', 'payment.expired']
    """
    schema: dict[str, Any] = json.loads(_WEBHOOKS.read_text("utf-8"))
    return schema


def pull_document() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of the requests with which a consumer pulls its events.

    >>> list(pull_document()["paths"])
    ['/events/claim', '/events/acknowledge', '/events/fail']
    """
    document: dict[str, Any] = json.loads(_PULL.read_text("utf-8"))
    event: dict[str, Any] = json.loads(_WEBHOOKS.read_text("utf-8").replace("#/$defs/", "#/components/schemas/"))
    document["components"]["schemas"] |= {**event.pop("$defs"), "event": event}
    del event["$schema"]
    return document
