"""The shipped OpenAPI document, as a check of responses: their status, code, header fields and members."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from attrs import frozen
from jsonschema import Draft202012Validator, FormatChecker

from incoming_payments.endpoints.open_payments import Response
from incoming_payments.endpoints.openapi import openapi_document
from incoming_payments.flows.policy import ServicePolicy

DOCUMENT: Final = openapi_document(ServicePolicy(base_url="https://bank.example", auth_server="https://auth.example"))


@frozen
class Documented:
    """An operation of the document."""

    id: str
    method: str
    path: str
    responses: Mapping[str, Any]

    @property
    def codes(self) -> set[tuple[int, str]]:
        """Return the status and the code of each refusal."""
        return {
            (int(status), code)
            for status, response in self.responses.items()
            for code in re.findall(r"`([a-z_]+)`(?=[,:])", _resolved(response)["description"])
        }


def _resolved(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the component to which `node` refers, or `node`."""
    found: Any = node
    if "$ref" in node:
        found = DOCUMENT
        for name in node["$ref"].removeprefix("#/").split("/"):
            found = found[name]
    resolved: Mapping[str, Any] = found
    return resolved


def _operations() -> Iterator[Documented]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield Documented(operation["operationId"], method.upper(), path, operation["responses"])


OPERATIONS: Final = {operation.id: operation for operation in _operations()}


@cache
def validator(pointer: str) -> Draft202012Validator:
    """Return a validator for the schema at `pointer`, such as `#/components/schemas/amount`."""
    return Draft202012Validator({**DOCUMENT, "$ref": pointer}, format_checker=FormatChecker())


def operation_of(method: str, path: str) -> Documented | None:
    """Return the operation with this method and path, or another one of the path, which has the same 405."""
    found = None
    for operation in OPERATIONS.values():
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", operation.path), path):
            found = operation if found is None or operation.method == method else found
    return found


def check_response(operation: Documented, response: Response) -> tuple[int, str]:
    """Return the status and the code of `response`, if the document has it for `operation`."""
    status = str(response.status)
    assert status in operation.responses, f"{operation.id} does not document {status}: {response.body!r}"
    documented = _resolved(operation.responses[status])
    names = {name.lower() for name, _ in response.headers}
    required = {name for name, one in documented["headers"].items() if one.get("required")}
    assert {name for name in required if name.lower() not in names} == set()
    body = json.loads(response.body)
    if "content" in documented:
        reference = operation.responses[status].get("$ref")
        if reference is None:
            path = operation.path.replace("/", "~1")
            reference = f"#/paths/{path}/{operation.method.lower()}/responses/{status}"
        errors = list(validator(f"{reference}/content/application~1json/schema").iter_errors(body))
        assert errors == [], f"{operation.id} {status}: {errors[0].message}"
    return response.status, body["error"]["code"] if response.status >= 400 else ""


def check(method: str, path: str, response: Response) -> None:
    """Fail unless the document has `response` for a request with this method and path.

    An error class of a test, such as a kind of `PolicyRefused`, may have a code of its own.
    """
    if operation := operation_of(method, path):
        status, code = check_response(operation, response)
        is_ours = type(response.cause).__module__.startswith("incoming_payments.")
        assert not is_ours or (status, code) in operation.codes, f"{operation.id} does not document {status} {code}"
