"""The programs in `examples/`, each run as a real process and used over real HTTP."""

import errno
import gzip
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import httpx
import pytest

from incoming_payments.httpsig import PrivateKey
from incoming_payments.server.init import CONFIGURATION
from kits.peers import HttpConnector, sender_for
from kits.processes import COMMAND, ROOT, HttpClient, code_of, free_port, run_command, serving, token_in, unsigned

EXAMPLES: Final = ROOT / "examples"
SERVERS: Final = {  # the command of each example, as its docstring has it
    "aiohttp_app": "aiohttp.web -H 127.0.0.1 -P {port} aiohttp_app:app",
    "django_app": "waitress --listen 127.0.0.1:{port} django_app:application",
    "django_asgi_app": "uvicorn --app-dir {examples} django_asgi_app:application --port {port}",
    "fastapi_app": "uvicorn --app-dir {examples} fastapi_app:app --port {port}",
    "flask_app": "flask --app {examples}/flask_app run --port {port}",
    "starlette_app": "uvicorn --app-dir {examples} starlette_app:app --port {port}",
}


@contextmanager
def example(name: str, folder: Path) -> Iterator[HttpClient]:
    """Run the example `name` with the keys and the token in `folder`, and yield a client."""
    port = free_port()
    if not (folder / CONFIGURATION).exists():
        assert run_command("init", folder, "--port", str(port)).returncode == 0
    path = folder / CONFIGURATION
    path.write_text(re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{port}", path.read_text("utf-8")), "utf-8")
    command = [sys.executable, "-m", *SERVERS[name].format(examples=EXAMPLES, port=port).split()]
    with serving(command, port, folder / "log", env={"FOLDER": str(folder), "PYTHONPATH": str(EXAMPLES)}):
        yield HttpClient.of(folder, f"http://127.0.0.1:{port}")


@pytest.fixture(scope="module", params=sorted(SERVERS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an example's files. Its name is that of the example."""
    return tmp_path_factory.mktemp(request.param, numbered=False)


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[HttpClient]:
    """Yield a client of one of the examples."""
    with example(folder.name, folder) as client:
        yield client


def test_create_and_read(client: HttpClient) -> None:
    """A client creates a payment and reads all of it. An unsigned request reads the public view."""
    created = client.create(
        incomingAmount={"value": "2500", "assetCode": "USD", "assetScale": 2},
        expiresAt=(datetime.now(UTC) + timedelta(days=1)).isoformat(),
        metadata={"externalRef": "INV-2026-0042"},
    )
    assert created.status_code == 201
    payment = created.json()
    read = client.get(payment["id"])
    public = unsigned("GET", payment["id"])

    nothing = {"value": "0", "assetCode": "USD", "assetScale": 2}
    assert (200, payment) == (read.status_code, read.json())
    assert public.status_code == 200
    assert {"receivedAmount": nothing, "authServer": "https://auth.bank.example"} == public.json()
    assert payment["id"] == created.headers["location"]
    assert (read.headers["content-type"], read.headers["cache-control"]) == ("application/json", "no-store")
    assert [method["type"] for method in payment["methods"]] == ["ilp"]


def test_a_payment_is_paid_by_packets(client: HttpClient, folder: Path) -> None:
    """The peer of `init` pays a payment over HTTP. Without its token the framework's route refuses."""
    created = client.create(incomingAmount={"value": "2500", "assetCode": "USD", "assetScale": 2}).json()
    sender = sender_for(created)
    with HttpConnector.of(folder, client.base_url) as connector:
        paid = connector.pay(sender, 2500)
        again = connector.pay(sender, 1)
        refused = connector.post(b"", authorization="Bearer an-unknown-token-of-a-peer")
    read = client.get(created["id"]).json()
    method = unsigned("PUT", f"{client.base_url}/ilp")

    assert (paid.code, again.code) == ("fulfilled", "F07")
    assert (read["receivedAmount"]["value"], read["completed"]) == ("2500", True)
    assert (code_of(refused), refused.headers["www-authenticate"]) == ((401, "invalid_token"), "Bearer")
    assert (code_of(method), method.headers["allow"]) == ((405, "method_not_allowed"), "POST")


def test_forged_signature_is_refused(client: HttpClient) -> None:
    """A signature by another key under the same id gets 401 with the challenge."""
    id = client.create().json()["id"]
    forger = HttpClient(client.base_url, client.token, PrivateKey.generate_ed25519(client.key.kid))
    refused = forger.get(id)

    assert code_of(refused) == (401, "signature_invalid")
    assert refused.headers["www-authenticate"] == "GNAP as_uri=https://auth.bank.example"


def test_compressed_body_is_refused_unread(client: HttpClient) -> None:
    """A server that decompresses it first spends a thousand times the bytes: then the refusal is 413."""
    headers = {"Authorization": "GNAP x", "Content-Type": "application/json", "Content-Encoding": "gzip"}
    bomb = gzip.compress(bytes(16 * 2**20))
    refused = httpx.post(f"{client.base_url}/incoming-payments", headers=headers, content=bomb)

    assert code_of(refused) == (415, "unsupported_encoding")


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "POST"])
def test_unknown_method_is_refused(client: HttpClient, method: str) -> None:
    """The service refuses the method with its own error body; the framework does not."""
    refused = unsigned(method, f"{client.base_url}/incoming-payments/019b76da-a800-7000-8000-000000000000")

    assert code_of(refused) == (405, "method_not_allowed")
    assert refused.headers["allow"] == "GET, HEAD, OPTIONS"


def test_preflight_is_answered_by_the_service(client: HttpClient) -> None:
    """A browser may read the public view for a page of another origin."""
    answer = unsigned("OPTIONS", f"{client.base_url}/incoming-payments/019b76da-a800-7000-8000-000000000000")

    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "*")


@pytest.mark.parametrize("method", ["DELETE", "PUT", "OPTIONS"])
def test_unknown_method_of_the_collection_is_refused(client: HttpClient, method: str) -> None:
    """Payments can be created and listed, and nothing else."""
    refused = unsigned(method, f"{client.base_url}/incoming-payments")

    assert code_of(refused) == (405, "method_not_allowed")
    assert refused.headers["allow"] == "POST, GET, HEAD"


def test_list_needs_its_right(client: HttpClient) -> None:
    """The example passes the query on: without a token the list is refused, and with one that lacks the right too."""
    assert code_of(unsigned("GET", f"{client.base_url}/incoming-payments")) == (401, "token_missing")
    assert code_of(client.list(first=5)) == (401, "insufficient_rights")


@pytest.mark.parametrize("id", ["019b76da-a800-7000-8000-000000000000", "1", "019b76da/b", "%2e%2e"])
def test_unknown_payment_is_not_found(client: HttpClient, id: str) -> None:
    """An unknown payment gets 404 with the service's own error body, for any id."""
    expected = "not_found" if "/" in id else "payment_not_found"

    assert (404, expected) == code_of(unsigned("GET", f"{client.base_url}/incoming-payments/{id}"))


@pytest.mark.parametrize(
    "path", ["/incoming-payments/", "/incoming-payments//1", "/incoming-payments/1/", "/incoming-payments/1/x", "/ilp/"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "PURGE"])
def test_other_path_is_refused_by_the_service(client: HttpClient, method: str, path: str) -> None:
    """A surplus slash leads to no redirect, and to no page of the framework."""
    assert code_of(unsigned(method, f"{client.base_url}{path}")) == (404, "not_found")


def test_head(client: HttpClient) -> None:
    """HEAD has the response of GET without the content."""
    id = client.create().json()["id"]
    answer = unsigned("HEAD", id)
    length = str(len(unsigned("GET", id).content))

    assert (answer.status_code, answer.content, answer.headers["content-type"]) == (200, b"", "application/json")
    assert answer.headers["content-length"] == length


def test_the_client(tmp_path: Path) -> None:
    """The client creates a payment at a running `serve` and reads it. It prints errors."""
    port = free_port()
    assert run_command("init", tmp_path, "--port", str(port)).returncode == 0
    command = [sys.executable, str(EXAMPLES / "client.py"), str(tmp_path)]
    too_early = subprocess.run(command, capture_output=True, text=True, timeout=60)
    with serving([*COMMAND, "serve", "--config", tmp_path / CONFIGURATION], port, tmp_path / "log"):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        path = tmp_path / CONFIGURATION
        path.write_text(path.read_text("utf-8").replace(token_in(tmp_path), "UNKNOWN"), "utf-8")
        refused = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert too_early.returncode == 1
    assert re.fullmatch(rf"http://127.0.0.1:{port} does not answer \(.+\): is it running\?\n", too_early.stderr)
    assert (done.returncode, done.stderr) == (0, "")
    url = f"http://127.0.0.1:{port}/incoming-payments"
    answers = re.findall(r"^POST \S+ 201|^GET \S+/(?=\S+ 200)", done.stdout, re.MULTILINE)
    assert answers == [f"POST {url} 201", f"GET {url}/"]
    assert refused.returncode == 1
    assert f"POST {url} 401" in refused.stdout


@pytest.mark.parametrize("missing", [CONFIGURATION, "client-key.jwk", "client-key.pem"])
def test_the_client_names_a_missing_file(tmp_path: Path, missing: str) -> None:
    """The client says in one line which file is missing, and how to create the files."""
    assert run_command("init", tmp_path).returncode == 0
    (tmp_path / missing).unlink()
    command = [sys.executable, str(EXAMPLES / "client.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)

    why = f"cannot be read: {os.strerror(errno.ENOENT)}; create the folder with `incoming-payments init`"
    assert (done.returncode, done.stderr) == (1, f"{tmp_path / missing} {why}\n")


@pytest.mark.parametrize("name", sorted(SERVERS))
def test_payments_survive_a_restart(name: str, tmp_path: Path) -> None:
    """A payment survives a restart of the program."""
    with example(name, tmp_path) as client:
        created = client.create()
        assert created.status_code == 201
    path = created.json()["id"].removeprefix(client.base_url)
    with example(name, tmp_path) as client:
        again = unsigned("GET", f"{client.base_url}{path}")

    assert (200, created.json()["receivedAmount"]) == (again.status_code, again.json()["receivedAmount"])
