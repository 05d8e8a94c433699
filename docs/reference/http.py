"""The operations, members and codes of `docs/http.md`, from the OpenAPI document."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import openapi

from reference.codes import (
    CODES,
    HTTP_CODES,
    OUTAGE_CODES,
    RESOURCE_CODES,
    SIGNATURE_CODES,
    TOKEN_CODES,
    Refusal,
)
from reference.markdown import table

Schema = dict[str, Any]

# The heading of each schema of a response.
TITLES: Final[Mapping[str, str]] = {
    "incoming-payment": "Incoming payment",
    "incoming-payment-summary": "Incoming payment in a list",
    "public-incoming-payment": "Public view of an incoming payment",
    "page": "Page of incoming payments",
    "amount": "Amount",
    "ilp-payment-method": "ILP payment method",
    "error": "Error",
}
_MEMBER_TITLES: Final = ("member", "type", "present", "meaning")
_SHOWN: Final = tuple(one for one in openapi.OPERATIONS if one.method != "head")


def _link(title: str) -> str:
    shown = title if title[1:2].isupper() else f"{title[:1].lower()}{title[1:]}"
    return f"[{shown}](#{title.lower().replace(' ', '-')})"


# --- types and members -------------------------------------------------------------------------------


def _type(schema: Schema) -> str:
    """Return the type of a value in words."""
    if "$ref" in schema:
        return _link(TITLES[schema["$ref"].rpartition("/")[2]])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema["type"] == "array":
        return f"array of {_type(schema['items'])}"
    name = {"date-time": "date-time", "uri": "URL"}.get(schema.get("format", ""), schema["type"])
    return name if isinstance(name, str) else "string, number, boolean or null"


def _bounds(schema: Schema) -> str:
    """Return the limits of a value as a sentence, if there are any."""
    found = {
        "maxLength": "At most {} characters.",
        "maxItems": "At most {} items.",
        "maximum": f"From {schema.get('minimum')} to {{}}.",
    }
    return " ".join(text.format(schema[name]) for name, text in found.items() if name in schema)


def _members(schema: Schema, above: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for each member of an object, and of the objects in it that have no heading of their own."""
    for name, one in schema["properties"].items():
        path = f"{above}{name}"
        presence = "always" if name in schema["required"] else "optional"
        if "properties" in one:
            yield f"`{path}`", "object", presence, one.get("description", "")
            yield from _members(one, f"{path}.")
        else:
            text = " ".join(filter(None, [one.get("description", ""), _bounds(one)]))
            yield f"`{path}`", _type(one), presence, text


def members() -> str:
    """Return the members of every body of a response."""
    schemas, parts = openapi.schemas(), []
    for name, title in TITLES.items():
        intro = f"{text}\n\n" if (text := schemas[name].get("description")) else ""
        parts.append(f"### {title}\n\n{intro}{table(_MEMBER_TITLES, _members(schemas[name]))}")
    return "\n\n".join(parts)


# --- operations --------------------------------------------------------------------------------------


def operation_list() -> str:
    """Return one row for each operation of a client."""
    rows = [(f"`{one.method.upper()} {{base_url}}{one.path}`", _link(one.summary), _identity(one)) for one in _SHOWN]
    return table(["request", "operation", "token and signature"], rows)


def _identity(one: openapi.Operation) -> str:
    """Return whether the request has a token and a signature."""
    if {} not in one.security:
        return "required"
    return "optional" if len(one.security) > 1 else "none"


def identity_headers() -> str:
    """Return the header fields that identify a client."""
    schemes = openapi.document()["components"]["securitySchemes"].values()
    return table(
        ["header field", "value"], [(f"`{one.get('name', 'Authorization')}`", one["description"]) for one in schemes]
    )


def operations() -> str:
    """Return a section for each operation, with its request, its response and the codes of its refusals."""
    return "\n\n".join(_operation(one) for one in _SHOWN)


def _operation(one: openapi.Operation) -> str:
    parts = [f"### {one.summary}", f"`{one.method.upper()} {{base_url}}{one.path}`"]
    if one.description:
        parts.append(one.description)
    if one.parameters:
        parts.append(table(["parameter", "in", "type", "present", "meaning"], map(_parameter, one.parameters)))
    if one.body:
        rows = [
            (name, kind, "required" if presence == "always" else presence, text)
            for name, kind, presence, text in _members(openapi.schemas()[one.body])
        ]
        parts += ["The body of the request is a JSON object:", table(_MEMBER_TITLES, rows)]
    parts += [_success(one), table(["status", "codes of refusals"], _codes(one))]
    return "\n\n".join(parts)


def _parameter(one: Schema) -> tuple[str, str, str, str, str]:
    schema = one["schema"]
    presence = "required" if one["required"] else "optional"
    text = " ".join(filter(None, [one["description"], _bounds(schema)]))
    return f"`{one['name']}`", one["in"], _type(schema), presence, text


def _success(one: openapi.Operation) -> str:
    """Return the status, the body and the header fields of the response."""
    body = " or ".join([_link(TITLES[name]) for name in one.success.schemas if name in TITLES]) or "`{}`"
    success = table(["success", "body", "meaning"], [(one.success.status, body, f"{one.success.text}.")])
    headers = {**one.success.headers, **one.success.optional_headers}
    rows = [(f"`{name}`", text) for name, text in headers.items()]
    return "\n\n".join([success, *([table(["header field", "value"], rows)] if rows else [])])


def _codes(one: openapi.Operation) -> Iterator[tuple[int, str]]:
    """Yield each status of a refusal with its codes, without those of every operation."""
    by_status: dict[int, list[str]] = {}
    for code in one.codes:
        if code not in openapi.HTTP:
            by_status.setdefault(CODES[code].status, []).append(code)
    for status, codes in sorted(by_status.items()):
        shown = f"all {_link('Codes of the token and the signature')}"
        yield status, shown if status == 401 else ", ".join(f"`{code}`" for code in codes)


def common_codes() -> str:
    """Return the codes that every operation may answer with."""
    rows = sorted((CODES[code].status, f"`{code}`") for code in openapi.HTTP)
    return ", ".join(f"{status} {code}" for status, code in rows)


def header_list() -> str:
    """Return the header fields that belong to a status."""
    rows = [
        (status, f"`{name}`", text)
        for headers in (openapi.HEADERS, openapi.OPTIONAL_HEADERS)
        for status, fields in headers.items()
        for name, text in fields.items()
    ]
    return table(["status", "header field", "value"], sorted(rows))


# --- codes -------------------------------------------------------------------------------------------


def _code_table(group: Iterable[tuple[str, Refusal]], *, with_status: bool = True) -> str:
    rows = [(one.status, f"`{code}`", one.cause, one.remedy) for code, one in group]
    rows = sorted(rows, key=lambda row: row[0])  # within a status, in the order of the checks
    titles = ["status", "code", "cause", "remedy"]
    return table(titles, rows) if with_status else table(titles[1:], [row[1:] for row in rows])


def http_codes() -> str:
    """Return the codes of HTTP itself."""
    return _code_table(HTTP_CODES.items())


def identity_codes() -> str:
    """Return the codes of a refused token or signature."""
    return _code_table([*TOKEN_CODES.items(), *SIGNATURE_CODES.items()], with_status=False)


def resource_codes() -> str:
    """Return the codes that depend on the payment, the wallet address or a rule of the host."""
    return _code_table(RESOURCE_CODES.items())


def outage_codes() -> str:
    """Return the codes of a service that cannot answer."""
    return _code_table(OUTAGE_CODES.items())
