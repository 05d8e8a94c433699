"""The types and members of `docs/event-types.md`, from the transition table and the JSON Schema of webhooks."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from incoming_payments.domain.events import EventKind
from incoming_payments.domain.transitions import TABLE, Move
from incoming_payments.endpoints.openapi import webhook_schema
from reference.markdown import table

# When each event occurs.
OCCURRENCES: Final[Mapping[EventKind, str]] = {
    EventKind.CREATED: "the payment was created",
    EventKind.CREDITED: "the payment received money",
    EventKind.COMPLETED: "the payment has received its `incomingAmount`, or its client has closed it",
    EventKind.EXPIRED: "`expiresAt` has passed, and the payment accepts no more money",
}
_DEFINITIONS: Final[Mapping[str, str]] = {
    "ids": "all",
    "state": "all, except [thin](webhooks.md#send-them) webhooks",
    "credits": "`payment.credited`, except thin webhooks",
}


def event_types() -> str:
    """Return each type of event, with the triggers that write it."""
    rows = [(f"`payment.{kind}`", f"`{kind}`", OCCURRENCES[kind], ", ".join(_triggers(kind))) for kind in EventKind]
    return table(["type", "kind in Python", "occurs when", "triggers"], rows)


def _triggers(kind: EventKind) -> list[str]:
    """Return the triggers of the rows that write an event of this kind, each of them once."""
    rows = [row for row in TABLE if isinstance(row.outcome, Move) and kind in row.outcome.events]
    return list(dict.fromkeys(str(row.trigger) for row in rows))


def event_members() -> str:
    """Return the members of the JSON of an event."""
    schema = webhook_schema()
    rows = [*_members(schema, "", "all")]
    for name, types in _DEFINITIONS.items():
        rows += _members(schema["$defs"][name], "data.", types)
    return table(["member", "type", "present in", "meaning"], rows)


def _members(schema: Mapping[str, Any], above: str, types: str) -> Iterator[tuple[str, str, str, str]]:
    for name, one in schema["properties"].items():
        if name == "data":
            yield "`data`", "object", types, "The members below."
            continue
        kind = "[amount](http.md#amount)" if "$ref" in one else one.get("format", one.get("type", "string"))
        yield f"`{above}{name}`", {"uri": "URL"}.get(kind, kind), types, one["description"]


def event_examples() -> str:
    """Return the examples of the schema."""
    blocks = [json.dumps(one, indent=2) for one in webhook_schema()["examples"]]
    return "\n\n".join(f"```json\n{block}\n```" for block in blocks)
