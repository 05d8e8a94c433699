"""The generated parts of the pages of the reference, each with the function that writes it."""

from collections.abc import Callable, Mapping
from typing import Final

from reference import commands, errors, events, http, limits

REFERENCE: Final[Mapping[str, Callable[[], str]]] = {
    "operation list": http.operation_list,
    "identity headers": http.identity_headers,
    "common codes": http.common_codes,
    "operations": http.operations,
    "members": http.members,
    "headers": http.header_list,
    "http codes": http.http_codes,
    "identity codes": http.identity_codes,
    "resource codes": http.resource_codes,
    "outage codes": http.outage_codes,
    "input errors": errors.input_errors,
    "credit refusals": errors.credit_refusals,
    "refusals": errors.refusals,
    "outages": errors.outages,
    "other errors": errors.other_errors,
    "limits": limits.limit_tables,
    "command list": commands.command_list,
    "commands": commands.commands,
    "event types": events.event_types,
    "event members": events.event_members,
    "event examples": events.event_examples,
}
