"""Outages between three processes: `serve`, an authorization server, and a server with the key sets of clients.

Each server is killed, delayed, garbled and redirected. No request takes longer than its limit, no request passes
without a valid token and a valid key, and the service resumes when the other server does.
"""

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import define

from campaigns.edge.authorization import Other
from incoming_payments.httpsig import PrivateKey
from incoming_payments.limits import BREAKER_OPEN_S_MAX, DOCUMENT_COOL_DOWN_S_MIN
from incoming_payments.server.init import CONFIGURATION
from kits.processes import COMMAND, HttpClient, free_port, run_command, serving, unsigned

SLACK_S: Final = 2.0  # for a slow machine
LIMIT_S: Final = 1.0  # the `timeout_s` of the configuration
KEYS_LIMIT_S: Final = 3.0  # `limits.DOCUMENT_FETCH_S_DEFAULT`
DOWN: Final[list[dict[str, Any]]] = [
    {"fault": "delay", "seconds": 30},
    {"fault": "error"},
    {"fault": "garbage"},
    {"fault": "huge"},
    {"fault": "redirect"},
    {"fault": "close"},
]


@define
class Scene:
    """The three processes and their client."""

    authorization: Other
    key_sets: Other
    client: HttpClient
    log: Path
    slowest_s: float = 0.0

    def create(self, client: HttpClient | None = None) -> tuple[int, str]:
        """Return status and code of a signed request, and measure it."""
        begin_s = time.monotonic()
        answer = (client or self.client).create()
        self.slowest_s = max(self.slowest_s, time.monotonic() - begin_s)
        if answer.status_code == 503:
            assert "Retry-After" in answer.headers
        return answer.status_code, answer.json().get("error", {}).get("code", "")

    def grant(self) -> None:
        """Issue the token of the client again, after a restart of the authorization server."""
        shop = f"http://127.0.0.1:{self.key_sets.port}/shop"
        self.authorization("issue", token=self.client.token, actions=["create", "read"], client=shop)

    def publish(self, *keys: PrivateKey) -> None:
        """Publish the key set of the client."""
        self.key_sets("publish", name="shop", jwks=[key.public_jwk() for key in keys])

    def resume(self, limit_s: float) -> None:
        """Wait until the client is served again."""
        deadline = time.monotonic() + limit_s + SLACK_S
        while (answer := self.create())[0] != 201:
            assert answer[0] in {401, 503}
            assert time.monotonic() < deadline, answer
            time.sleep(0.1)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """Start the three processes. At the end, none of the answers has led to a traceback or to a token in the log."""
    with three_processes(tmp_path) as scene:
        yield scene
    output = scene.log.read_text("utf-8")
    assert "Traceback" not in output
    assert scene.client.token not in output


@contextmanager
def three_processes(folder: Path) -> Iterator[Scene]:
    port, authorization, key_sets = free_port(), Other(free_port()), Other(free_port())
    arguments = ["--port", str(port), *authorization.options]
    assert run_command("init", folder / "bank", *arguments).returncode == 0
    path = folder / "bank" / CONFIGURATION
    path.write_text(path.read_text("utf-8").replace("# timeout_s = 3", f"timeout_s = {LIMIT_S:.0f}"), "utf-8")
    client = HttpClient(f"http://127.0.0.1:{port}", "TOKEN-OF-THE-CLIENT", PrivateKey.generate_ed25519("key-1"))
    log = folder / "log"
    with ExitStack() as stack:
        for other in (authorization, key_sets):
            other.start()
            stack.callback(other.close)
        stack.enter_context(serving([*COMMAND, "serve", "--config", path], port, log))
        scene = Scene(authorization, key_sets, client, log)
        scene.grant()
        scene.publish(client.key)
        yield scene


def test_outages_of_the_authorization_server(scene: Scene) -> None:
    """Each outage is 503 for a client with a token, and nothing for a public reader or a peer. Then service resumes."""
    created = scene.client.create()
    assert created.status_code == 201
    for fault in DOWN:
        scene.authorization("fail", **fault)
        for _ in range(3):
            assert scene.create() == (503, "authorization_server_unavailable"), fault
        assert unsigned("GET", created.json()["id"]).status_code == 200
        assert unsigned("GET", f"{scene.client.base_url}/readyz").status_code == 200
        scene.authorization("fail", fault=None)
        scene.resume(BREAKER_OPEN_S_MAX)
    scene.authorization.process.send_signal(signal.SIGSTOP)  # it accepts connections, and says nothing
    assert scene.create() == (503, "authorization_server_unavailable")
    scene.authorization.process.send_signal(signal.SIGCONT)
    scene.resume(BREAKER_OPEN_S_MAX)
    scene.authorization.kill()
    for _ in range(3):
        assert scene.create() == (503, "authorization_server_unavailable")
    scene.authorization.start()
    scene.grant()
    scene.resume(BREAKER_OPEN_S_MAX)
    assert scene.slowest_s < LIMIT_S + SLACK_S
    assert "authorization server" in scene.log.read_text("utf-8")


def test_revoked_token_is_refused_at_once(scene: Scene) -> None:
    """Without a cache, the next request with a revoked token is refused. So is a token that never existed."""
    assert scene.create() == (201, "")
    scene.authorization("revoke", token=scene.client.token)
    assert scene.create() == (401, "invalid_token")
    assert scene.create(HttpClient(scene.client.base_url, "FORGED", scene.client.key)) == (401, "invalid_token")


def test_outages_of_the_key_sets(scene: Scene) -> None:
    """Known keys stay in use through each outage, and an unknown key is never accepted."""
    forger = HttpClient(scene.client.base_url, scene.client.token, PrivateKey.generate_ed25519("key-1"))
    stranger = HttpClient(scene.client.base_url, scene.client.token, PrivateKey.generate_ed25519("key-2"))
    assert scene.create() == (201, "")
    for fault in DOWN:
        scene.key_sets("fail", **fault)
        assert scene.create() == (201, "")
        assert scene.create(forger) == (401, "signature_invalid")
        assert scene.create(stranger)[0] in {401, 503}
        scene.key_sets("fail", fault=None)
    scene.key_sets.kill()
    assert scene.create() == (201, "")
    assert scene.create(stranger)[0] in {401, 503}
    scene.key_sets.start()
    scene.publish(scene.client.key)
    assert scene.create() == (201, "")
    assert scene.slowest_s < LIMIT_S + KEYS_LIMIT_S + SLACK_S


def test_first_fetch_of_a_key_set_fails(scene: Scene) -> None:
    """Without a known key, the client gets 503, and is served after the cool-down."""
    clients = []
    for number, fault in enumerate(DOWN):
        client = HttpClient(scene.client.base_url, f"TOKEN-{number}", scene.client.key)
        shop = scene.key_sets("publish", name=f"shop-{number}", jwks=[client.key.public_jwk()])
        scene.authorization("issue", token=client.token, actions=["create"], client=shop)
        scene.key_sets("fail", **fault)
        assert scene.create(client)[0] == 503, fault
        clients.append(client)
    scene.key_sets("fail", fault=None)
    for scene.client in clients:
        scene.resume(DOCUMENT_COOL_DOWN_S_MIN)
    assert scene.slowest_s < LIMIT_S + KEYS_LIMIT_S + SLACK_S


def test_rotated_key_is_accepted(scene: Scene) -> None:
    """A new key of the client is fetched after the cool-down, without a restart, and the old one is withdrawn."""
    new = HttpClient(scene.client.base_url, scene.client.token, PrivateKey.generate_ed25519("key-2"))
    assert scene.create() == (201, "")
    scene.publish(new.key)
    old, scene.client = scene.client, new
    scene.resume(DOCUMENT_COOL_DOWN_S_MIN)
    assert scene.create(old)[0] == 401
    assert scene.key_sets("requests") == 2
