"""The access log of `serve`: a line for each request, and nothing that is secret."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from incoming_payments.limits import LOGGED_PATH_CHARS_MAX
from incoming_payments.server.init import CONFIGURATION
from kits.processes import COMMAND, HttpClient, free_port, run_command, serving, token_in, unsigned

QUERY: Final = "token=A-SECRET-IN-A-QUERY"


def requests(folder: Path, settings: dict[str, str]) -> tuple[list[str], str]:
    """Send requests to `serve` with these settings in `[log]`. Return the log, and the URL of the new payment."""
    port = free_port()
    assert run_command("init", folder, "--port", str(port)).returncode == 0
    path = folder / CONFIGURATION
    text = path.read_text("utf-8")
    for old, new in settings.items():
        text = text.replace(old, new)
    path.write_text(text, "utf-8")
    base_url = f"http://127.0.0.1:{port}"
    with serving([*COMMAND, "serve", "--config", path], port, folder / "log"):
        url = str(HttpClient.of(folder, base_url).create().json()["id"])
        unsigned("GET", f"{url}?{QUERY}", headers={"authorization": f"GNAP {token_in(folder)}"})
        unsigned("GET", f"{base_url}/healthz")
        unsigned("GET", f"{base_url}/{'%C3%BC' * LOGGED_PATH_CHARS_MAX}")
    return (folder / "log").read_text("utf-8").splitlines(), url.removeprefix(base_url)


@pytest.mark.parametrize("form", ["text", "json"])
def test_each_request_has_a_line(tmp_path: Path, form: str) -> None:
    """A line has method, path, status, size and time, and the address of the client. It has no query and no token."""
    log, path = requests(tmp_path, {"# access = true": "access = true", '# format = "json"': f'format = "{form}"'})
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
    assert [secret for secret in (QUERY, token_in(tmp_path)) if secret in "\n".join(log)] == []


def test_requests_leave_no_line_by_default(tmp_path: Path) -> None:
    """Clients cannot fill a disk, unless the access log is on."""
    log, _ = requests(tmp_path, {})
    assert [line for line in log if "request_answered" in line or "GET" in line] == []
