"""The short form of the campaign, and that it can fail."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from schemathesis.core.failures import FailureGroup

from campaigns.openapi import campaign
from campaigns.openapi.campaign import Campaign, main, service
from incoming_payments.endpoints.openapi import openapi_document
from incoming_payments.flows.policy import ServicePolicy
from kits.processes import HttpClient

# A run must reach these answers, so that it checks more than refusals.
REACHED: Final = {
    ("POST /incoming-payments", 201, ""),
    ("POST /incoming-payments", 400, "invalid_body"),
    ("POST /incoming-payments", 401, "token_missing"),
    ("GET /incoming-payments/{id}", 200, ""),
    ("GET /incoming-payments/{id}", 404, "payment_not_found"),
    ("GET /incoming-payments", 200, ""),
    ("GET /incoming-payments", 400, "invalid_query"),
    ("POST /incoming-payments/{id}/complete", 200, ""),
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpClient]:
    """Return the client of a real `serve` process."""
    with service(tmp_path_factory.mktemp("service")) as client:
        yield client


def test_every_answer_is_as_documented(client: HttpClient) -> None:
    """Requests over real HTTP get documented statuses, no 5xx, and bodies and header fields as in the document."""
    run = Campaign(client, seed=1)
    run.run(300)
    assert REACHED - set(run.answers) == set()
    assert run.answers.total() >= 300


@pytest.mark.parametrize("part", ["status", "code", "member", "header"])
def test_campaign_can_fail(client: HttpClient, part: str) -> None:
    """A document that lacks a status, a code, a member or a header field of the service fails the campaign."""
    policy = ServicePolicy(base_url=client.base_url, auth_server="https://auth.bank.example")
    document: dict[str, Any] = openapi_document(policy)
    operation = document["paths"]["/incoming-payments"]["post"]
    if part == "status":
        del operation["responses"]["401"]
    elif part == "code":
        schema = document["components"]["responses"]["401"]["content"]["application/json"]["schema"]
        schema["allOf"][1]["properties"]["error"]["properties"]["code"]["enum"] = ["token_missing"]
    elif part == "member":
        payment = document["components"]["schemas"]["incoming-payment"]
        payment["required"].remove("methods")
        del payment["properties"]["methods"]
    else:
        operation["responses"]["201"]["headers"]["X-Absent"] = {"required": True, "schema": {"type": "string"}}
    document["paths"] = {"/incoming-payments": {"post": operation}}
    with pytest.raises(FailureGroup):
        Campaign(client, 1, document).run(300)


def test_command_prints_the_answers(
    client: HttpClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints the number of each answer, and the number of all of them."""

    class Done:
        def __init__(self, *_: object) -> None:
            self.answers = Counter({("POST /incoming-payments", 201, ""): 7})

        def run(self, cases: int) -> None:
            assert cases == 5

    @contextmanager
    def running(_: Path) -> Iterator[HttpClient]:
        yield client

    monkeypatch.setattr(campaign, "Campaign", Done)
    monkeypatch.setattr(campaign, "service", running)
    assert main(["--cases", "5", "--seed", "9"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["7", "POST", "/incoming-payments", "201"]
    assert lines[1].endswith("7  requests, and every answer is as documented (seed 9)")
