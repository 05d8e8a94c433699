"""The lines of the log: their events, that they hold no secret, and their rate limits under a clock of the test."""

import ast
import base64
import io
import logging
import threading
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import evolve

import incoming_payments
from incoming_payments.endpoints.open_payments import Request, Response
from incoming_payments.errors import AuthorizationServerUnavailable, StoreUnavailable
from incoming_payments.hosts.wsgi import WsgiApplication
from incoming_payments.ilp.packet import PacketType, encode
from incoming_payments.limits import LOGGED_A_MINUTE_MAX
from incoming_payments.observers.log import LineLimit, LogEvent, log_event
from incoming_payments.service import IncomingPayments
from incoming_payments.stores.sqlite import SqliteStore
from kits.clocks import Seconds
from kits.fake_ports import Raising
from kits.packet_kit import BEARER, OCTETS, TOKEN, a_policy
from kits.service_kit import NOBODYS_ID, PATH, BrokenObserver, Service, document, id_of, settings
from kits.stream_kit import METHODS, SECRET, Sender

SOURCE: Final = Path(incoming_payments.__file__).parent
LOGGING_CALLS: Final = {"critical", "debug", "error", "exception", "info", "log", "warn", "warning"}


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([0, 0], [0, 0]),
        ([0, 1, 2, 3, 59.9], [0, 0, None, None, None]),
        ([0, 1, 2, 3, 60, 61, 62], [0, 0, None, None, 2, 0, None]),
        ([0, 30, 90, 91, 92, 149, 150], [0, 0, 0, 0, None, None, 2]),  # a minute begins with a line
    ],
)
def test_lines_a_minute_are_limited(times: list[float], expected: list[int | None]) -> None:
    """Two lines a minute pass; the next one that passes gets the number of the suppressed ones."""
    clock = Seconds()
    limit = LineLimit(2, clock=clock)
    admitted = []
    for clock.now in times:
        admitted.append(limit.admit())
    assert expected == admitted


def test_threads_share_the_limit() -> None:
    """Of 40 threads, the limit passes. The next line has the number of all others."""
    clock = Seconds()
    limit = LineLimit(clock=clock)
    admitted: list[int | None] = []
    threads = [threading.Thread(target=lambda: admitted.append(limit.admit())) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert admitted.count(0) == LOGGED_A_MINUTE_MAX
    clock.now = 60
    assert limit.admit() == 40 - LOGGED_A_MINUTE_MAX


# --- events ------------------------------------------------------------------------------------------


def test_every_line_of_the_library_has_an_event() -> None:
    """No module but `log` calls a logger, so each line passes `log_event`."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = node.func.value
                name = getattr(owner, "attr", getattr(owner, "id", ""))
                if name in {"logger", "_logger", "logging"} and node.func.attr in LOGGING_CALLS:
                    found.append(path.relative_to(SOURCE).as_posix())
    assert found == ["observers/log.py"]


def test_line_has_its_event_and_its_place(caplog: pytest.LogCaptureFixture) -> None:
    """The event is an attribute of the record. The place is the caller's, because `serve` limits lines by place."""
    error = RuntimeError("gone")
    log_event(logging.getLogger("tests.log"), logging.ERROR, LogEvent.NOT_READY, "no %s", "store", error=error)
    [record] = caplog.records
    assert (record.getMessage(), record.__dict__["event"]) == ("incoming payments: no store", "not_ready")
    assert (record.filename, record.funcName) == ("test_log.py", "test_line_has_its_event_and_its_place")
    assert record.exc_info is not None
    assert record.exc_info[1] is error


def test_events_are_names() -> None:
    """Each event is its name in lower case, and has a meaning for the docs."""
    for event in LogEvent:
        assert event == event.name.lower()
        assert event.meaning


# --- secrets -----------------------------------------------------------------------------------------


def test_log_of_a_whole_run_has_no_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Requests, packets, refusals, outages and failures leave lines of most events, and none holds a secret."""
    caplog.set_level(logging.DEBUG)
    kit = Service()
    kit.methods = METHODS
    kit.replace(methods=METHODS)
    client = kit.client()
    store = SqliteStore(tmp_path / "payments.db", observer=BrokenObserver())
    kit.replace(store=store, nonces=store.nonces)

    def send(request: Request) -> Response:
        service = IncomingPayments(**settings(kit, {"packets": a_policy(), "observer": BrokenObserver()}))
        application = WsgiApplication(service, explain_refusals=True)
        environ: dict[str, Any] = {"REQUEST_METHOD": request.method, "PATH_INFO": request.path}
        for name, value in request.headers:
            key = name.upper().replace("-", "_")
            environ[key if key.startswith("CONTENT_") and key != "CONTENT_DIGEST" else f"HTTP_{key}"] = value
        length = {"CONTENT_LENGTH": str(len(request.body))} if request.body else {}
        return application.answer({**length, **environ, "wsgi.input": io.BytesIO(request.body)})

    client.send = send
    payment = document(client.create(), 201)
    path = f"{PATH}/{str(payment['id']).rpartition('/')[2]}"
    sender = Sender(METHODS.derive(id_of(client.create())))
    packet = Request("POST", "/ilp", headers=[OCTETS, BEARER], body=encode(sender.prepare(5)))
    signed = client.sign(Request("GET", path))
    assert send(packet).body[0] == PacketType.FULFILL
    assert send(signed).status == 200
    assert send(evolve(signed, path=f"{PATH}/{NOBODYS_ID}")).status == 401  # explained
    assert send(client.creation(created=0)).status == 401
    assert send(evolve(packet, headers=[OCTETS, ("Authorization", f"Bearer {TOKEN}x")])).status == 401
    assert send(evolve(signed, path=f"/wrong{path}")).status == 404
    cut = [
        ("Content-Length", "5") if name.lower() == "content-length" else (name, value)
        for name, value in client.creation().headers
    ]
    assert send(evolve(client.creation(), headers=cut, body=b"")).status == 400
    kit.replace(introspector=Raising(AuthorizationServerUnavailable("no answer")))
    assert client.create().status == 503
    kit.replace(introspector=Raising(RuntimeError("a bug")))
    assert client.create().status == 500
    kit.replace(introspector=kit.tokens, store=Raising(StoreUnavailable("locked")))
    assert send(signed).status == 503
    assert send(packet).body[0] == PacketType.REJECT
    kit.replace(store=Raising(RuntimeError("a bug")))
    assert send(packet).body[0] == PacketType.REJECT
    assert not IncomingPayments(**settings(kit, {})).is_ready()
    store.close()

    formatter = logging.Formatter("%(name)s %(event)s %(message)s")
    text = "\n".join(f"{formatter.format(record)} {record.__dict__}" for record in caplog.records)
    assert {
        "authorization_server_unavailable", "body_not_read", "not_ready", "observer_failed", "request_failed",
        "signature_refused", "store_unavailable", "wrong_mount",
    } <= {record.__dict__["event"] for record in caplog.records}  # fmt: skip
    key = client.key._key.private_bytes_raw()
    shared = [method["sharedSecret"] for method in payment["methods"]]
    secrets = [client.token, TOKEN, *shared, SECRET.decode(), sender.credentials.shared_secret]
    for secret in [*secrets, key, SECRET]:
        octets = secret if isinstance(secret, bytes) else secret.encode()
        standard, safe = base64.b64encode(octets).decode().rstrip("="), base64.urlsafe_b64encode(octets).decode()
        forms = [octets.hex(), standard, safe.rstrip("="), repr(octets), *([secret] if isinstance(secret, str) else [])]
        assert [form for form in forms if form in text] == []
