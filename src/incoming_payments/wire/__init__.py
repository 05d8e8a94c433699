"""Convert between JSON and values. Only this package knows the JSON format (camelCase, amounts as strings, RFC 3339).

The reader is strict. It accepts only the format of the specification, and refuses everything else with `MalformedJson`.
`details["member"]` is the full path of the wrong member, such as `metadata.lines[2].price`. The reader refuses
duplicate members, because two readers could interpret such a body in different ways. It also refuses numbers that a
double cannot represent exactly (RFC 7493 §2.2). The query of a list request is checked as strictly as a body, and the
refusal is `MalformedQuery`.
"""

from incoming_payments.wire._json import read_json, write_json
from incoming_payments.wire._pull import (
    parse_lease,
    read_acknowledge,
    read_claim,
    read_fail,
    write_claimed,
)
from incoming_payments.wire._query import ListRequest, cursor_not_found, read_list_request
from incoming_payments.wire._values import (
    JSON_MEDIA_TYPE,
    CreateRequest,
    PageView,
    PaymentView,
    PublicView,
    SummaryView,
    parse_date_time,
    peek_wallet_address,
    read_create_request,
    write_date_time,
    write_error,
    write_view,
)
from incoming_payments.wire._webhooks import write_webhook

__all__ = [
    "JSON_MEDIA_TYPE",
    "CreateRequest",
    "ListRequest",
    "PageView",
    "PaymentView",
    "PublicView",
    "SummaryView",
    "cursor_not_found",
    "parse_date_time",
    "parse_lease",
    "peek_wallet_address",
    "read_acknowledge",
    "read_claim",
    "read_create_request",
    "read_fail",
    "read_json",
    "read_list_request",
    "write_claimed",
    "write_date_time",
    "write_error",
    "write_json",
    "write_view",
    "write_webhook",
]
