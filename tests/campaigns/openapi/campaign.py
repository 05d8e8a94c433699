"""schemathesis against a real `serve` process: every answer to signed requests must be as the OpenAPI document says.

schemathesis generates requests from the document that the process serves, valid ones and invalid ones, and checks the
answers. The library signs each request on its final bytes. Some requests get a wrong token or signature on purpose.

    nox -s openapi [-- --cases N --seed S]
"""

import argparse
import copy
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import hypothesis
import requests
import schemathesis
from attrs import field, frozen
from hypothesis import HealthCheck, Phase
from requests.auth import AuthBase
from schemathesis import Case, GenerationMode
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.config import (
    ChecksConfig,
    GenerationConfig,
    ProjectConfig,
    ProjectsConfig,
    SchemathesisConfig,
)
from schemathesis.config._checks import NegativeDataRejectionConfig
from schemathesis.specs.openapi import checks

from incoming_payments.httpsig import PrivateKey, RequestMessage, sign
from incoming_payments.server.init import CLIENT_JWK, CONFIGURATION
from kits.openapi_kit import validator
from kits.processes import COMMAND, HttpClient, free_port, run_command, serving

CHECKS: Final = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.unsupported_method,
    checks.missing_required_header,
    checks.allow_header_conformance,
]
REFUSED: Final = ["400", "401", "403", "404", "405", "406", "409", "413", "414", "415", "422", "429", "431"]
MODES: Final = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
_ACTIONS: Final = '"create", "read-all", "complete", "list-all"'
_TOKENS: Final = """
[[token]]
value = "NARROW"
client = "https://other.example/"
jwk_file = "{jwk}"
rights = [{{ actions = ["create", "read", "complete", "list"], identifier = "{base_url}/alice" }}]
[[token]]
value = "READ-ONLY"
client = "https://other.example/"
jwk_file = "{jwk}"
rights = [{{ actions = ["read"] }}]
[[token]]
value = "EXPIRED"
client = "https://other.example/"
jwk_file = "{jwk}"
rights = [{{ actions = ["create"] }}]
expires_at = 2026-01-01T00:00:00Z
"""


@frozen
class Signer(AuthBase):
    """Sign a request on its final bytes, as its client. A part of the requests is refused, each for its own reason."""

    client: HttpClient
    draw: random.Random
    forger: PrivateKey = field(factory=lambda: PrivateKey.generate_ed25519("client-key-1"))

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Return `request` with a token and a signature, or without them."""
        for name in ("Authorization", "Signature", "Signature-Input", "Content-Digest"):
            request.headers.pop(name, None)
        tokens = {self.client.token: 84, "NARROW": 4, "READ-ONLY": 2, "EXPIRED": 1, "UNKNOWN": 1, "": 8}
        [token] = self.draw.choices(list(tokens), list(tokens.values()))
        if not token or request.method == "OPTIONS":
            return request
        headers = tuple((str(name), _text(value)) for name, value in request.headers.items())
        headers = (("Authorization", f"GNAP {token}"), *headers)
        body = request.body.encode() if isinstance(request.body, str) else request.body or b""
        unsigned = RequestMessage(str(request.method), str(request.url), headers, body)
        key = self.forger if self.draw.random() < 0.02 else self.client.key
        keys = ["idempotency-key"] if unsigned.values("idempotency-key") else []
        for name, value in sign(unsigned, key, created=datetime.now(UTC), also=keys).headers:
            request.headers[name] = value
        return request


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


@contextmanager
def service(folder: Path) -> Iterator[HttpClient]:
    """Start `serve` with several tokens, and yield the client of the first one."""
    port = free_port()
    done = run_command("init", folder, "--port", str(port))
    assert done.returncode == 0, done.stderr
    path, base_url = folder / CONFIGURATION, f"http://127.0.0.1:{port}"
    client = HttpClient.of(folder, base_url)
    text = (
        path.read_text("utf-8").replace('"create", "read"', _ACTIONS).replace(f', identifier = "{base_url}/alice"', "")
    )
    path.write_text(text + _TOKENS.format(jwk=CLIENT_JWK, base_url=base_url), "utf-8")
    with serving([*COMMAND, "serve", "--config", path], port, folder / "log"):
        yield client


class Campaign:
    """Requests for all operations, with the number of answers of each kind."""

    def __init__(self, client: HttpClient, seed: int, document: dict[str, Any] | None = None) -> None:
        """Use the document that the service serves, or `document`."""
        load_all_checks()
        self.answers: Counter[tuple[str, int, str]] = Counter()
        self._seed = seed
        self._client = client
        self._draw = random.Random(seed)
        self._session = requests.Session()
        self._session.trust_env = False
        self._signer = Signer(client, self._draw)
        self._ids = [client.create().json()["id"].rpartition("/")[2] for _ in range(3)]
        generation = GenerationConfig(with_security_parameters=False)  # the signer adds them
        rules = ChecksConfig(negative_data_rejection=NegativeDataRejectionConfig(expected_statuses=REFUSED))
        project = ProjectConfig(generation=generation, checks=rules)
        config = SchemathesisConfig(projects=ProjectsConfig(default=project))
        document = document or self._session.get(f"{client.base_url}/openapi.json", timeout=60).json()
        self._schema = schemathesis.openapi.from_dict(document, config=config)
        found: Any = self._schema.get_all_operations()
        self._operations = [one.ok() for one in found]

    def run(self, cases: int) -> None:
        """Send at least `cases` requests. Raises the failure of the first check that does not hold."""
        for operation in self._operations:
            for mode in MODES:
                for case in self._schema.iter_coverage_cases(
                    operation, generation_modes=[mode], generation_config=self._schema.config.generation
                ):
                    self._send(case)
        turn = 0
        while self.answers.total() < cases:
            left = (cases - self.answers.total()) // (len(self._operations) * len(MODES)) + 1
            for operation in self._operations:
                for mode in MODES:
                    turn += 1
                    self._generate(operation, mode, left, self._seed + turn)

    def _generate(self, operation: Any, mode: GenerationMode, cases: int, seed: int) -> None:
        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=cases,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def send(case: "Case[Any]") -> None:
            self._send(case)

        with suppress(hypothesis.errors.Unsatisfiable):  # not every operation has invalid requests
            send()

    def _send(self, case: "Case[Any]") -> None:
        self._direct(case)
        answer = case.call_and_validate(
            base_url=self._client.base_url, session=self._session, auth=self._signer, checks=CHECKS, timeout=60
        )
        body = answer.content or b"{}"
        code = json.loads(body).get("error", {}).get("code", "") if answer.status_code >= 400 else ""
        self.answers[case.operation.label, answer.status_code, code] += 1
        if answer.status_code == 201 and len(self._ids) < 200:
            self._ids.append(json.loads(body)["id"].rpartition("/")[2])

    def _direct(self, case: "Case[Any]") -> None:
        """Let most requests be about a payment and a wallet address that exist. A wrong value in them stays wrong."""
        if "id" in case.path_parameters and self._draw.random() < 0.7:
            case.path_parameters["id"] = self._draw.choice(self._ids)
        if "wallet-address" in case.query and self._draw.random() < 0.9 and _is_listed(case.query["wallet-address"]):
            case.query["wallet-address"] = f"{self._client.base_url}/alice"
        if isinstance(case.query.get("cursor"), str) and case.query["cursor"] and self._draw.random() < 0.8:
            case.query["cursor"] = self._draw.choice(self._ids)
        if isinstance(case.body, dict) and case.method == "POST" and self._draw.random() < 0.9:
            body = copy.deepcopy(case.body) | {"walletAddress": f"{self._client.base_url}/alice"}
            amount = body.get("incomingAmount")
            if isinstance(amount, dict) and {"assetCode", "assetScale"} <= amount.keys() and self._draw.random() < 0.7:
                amount |= {"assetCode": "USD", "assetScale": 2}
            if "expiresAt" in body and self._draw.random() < 0.7:
                body["expiresAt"] = (datetime.now(UTC) + timedelta(days=1)).isoformat()
            is_valid = validator("#/components/schemas/create-incoming-payment").is_valid
            if is_valid(case.body) == is_valid(body):
                case.body = body


def _is_listed(value: object) -> bool:
    return isinstance(value, str) and value.startswith("http")


def main(arguments: list[str] | None = None) -> int:
    """Run the campaign, and print the number of answers of each kind."""
    parser = argparse.ArgumentParser(prog="nox -s openapi --")
    parser.add_argument("--cases", type=int, default=10_000, help="requests, at least (10000)")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the generated requests (1)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, service(Path(folder)) as client:
        campaign = Campaign(client, options.seed)
        campaign.run(options.cases)
    for (label, status, code), number in sorted(campaign.answers.items()):
        print(f"{number:7}  {label}  {status} {code}")
    print(f"{campaign.answers.total():7}  requests, and every answer is as documented (seed {options.seed})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
