"""The OpenAPI document of the service. `docs/openapi.py` writes the document to `openapi.json` in this package."""

import json
from importlib.resources import files
from typing import Any, Final

from incoming_payments.flows.policy import COLLECTION_PATH, ServicePolicy

_TEXT: Final = files(__package__).joinpath("openapi.json")


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
