"""The access log of `serve`: a line for each request, and nothing that is secret."""

import json
from typing import Any, Final

import pytest

from incoming_payments.limits import LOGGED_PATH_CHARS_MAX
from kits.processes import Bank, token_in, unsigned

QUERY: Final = "token=A-SECRET-IN-A-QUERY"


def requests(bank: Bank) -> tuple[list[str], str]:
    """Send requests to `serve`. Return the log, and the path of the new payment."""
    with bank.serving():
        url = str(bank.client.create().json()["id"])
        unsigned("GET", f"{url}?{QUERY}", headers={"authorization": f"GNAP {token_in(bank.folder)}"})
        unsigned("GET", f"{bank.base_url}/healthz", headers={"x-forwarded-for": "192.0.2.7"})  # which is not trusted
        unsigned("GET", f"{bank.base_url}/{'%C3%BC' * LOGGED_PATH_CHARS_MAX}")
    return bank.log.read_text("utf-8").splitlines(), url.removeprefix(bank.base_url)


@pytest.mark.parametrize("form", ["text", "json"])
def test_each_request_has_a_line(bank: Bank, form: str) -> None:
    """A line has method, path, status, size and time, and the address of the client. It has no query and no token."""
    bank.edit("# access = true", "access = true")
    bank.edit('# format = "json"', f'format = "{form}"')
    log, path = requests(bank)
    lines = [line for line in log if "request_answered" in line]
    expected = [
        ("POST", "/incoming-payments", 201),
        ("GET", path, 401),
        ("GET", "/healthz", 200),
        ("GET", ("/" + "%C3%BC" * LOGGED_PATH_CHARS_MAX)[:LOGGED_PATH_CHARS_MAX], 404),
    ]
    if form == "json":
        found: list[dict[str, Any]] = [json.loads(line) for line in lines]
        assert [(each["method"], each["path"], each["status"]) for each in found] == expected
        assert [each["client"] for each in found] == ["127.0.0.1"] * 4
        assert [each["bytes"] > 0 for each in found] == [True, True, False, True]
        assert [each["duration_ms"] > 0 for each in found] == [True] * 4
    else:
        starts = [f" 127.0.0.1 {method} {path} {status}, " for method, path, status in expected]
        assert [start in line for start, line in zip(starts, lines, strict=True)] == [True] * 4
    assert [secret for secret in (QUERY, token_in(bank.folder)) if secret in "\n".join(log)] == []


def test_requests_leave_no_line_by_default(bank: Bank) -> None:
    """Clients cannot fill a disk, unless the access log is on."""
    log, _ = requests(bank)
    assert [line for line in log if "request_answered" in line or "GET" in line] == []
