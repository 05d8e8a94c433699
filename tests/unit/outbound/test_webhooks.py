"""`outbound.webhooks`: signed webhooks to receivers on loopback, sync and async."""

import asyncio
import base64
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, Final

import pytest
import standardwebhooks
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from incoming_payments.domain.feed import consumer_name
from incoming_payments.domain.payment import WalletAddressUrl
from incoming_payments.errors import (
    ConfigurationError,
    HandlerGone,
    IncomingPaymentsError,
    RetryLater,
)
from incoming_payments.limits import (
    WEBHOOK_ANSWER_BYTES_MAX,
    WEBHOOK_CREDIT_DELAY_S_DEFAULT,
    WEBHOOK_DISABLE_S_DEFAULT,
    WEBHOOK_DOWN_S_DEFAULT,
    WEBHOOK_RETRY_AFTER_S_MAX,
    WEBHOOK_THROTTLE_S_MIN,
)
from incoming_payments.outbound.webhooks import AsyncWebhookSender, WebhookEndpoint, WebhookSender
from kits.document_kit import inject_resolver
from kits.https_server import contexts
from kits.scripted_server import Exchange, ScriptedServer, scripted_server
from kits.webhook_kit import (
    BEGIN,
    OTHER_SECRET,
    PAYMENT,
    SECRET,
    a_credit,
    a_delivery,
    an_endpoint,
    sending,
)

Sender = type[WebhookSender | AsyncWebhookSender]
Script = Callable[[Exchange, int], None]
KEY: Final = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC: Final = KEY.public_key().public_bytes_raw()
HIDDEN: Final = "T0ken-in-the-path"  # a secret in the URL of an endpoint


def private_key(raw: bytes) -> str:
    """Return `raw` as a private key of Standard Webhooks."""
    return "whsk_" + base64.b64encode(raw).decode()


@pytest.fixture(params=[WebhookSender, AsyncWebhookSender])
def cls(request: pytest.FixtureRequest) -> Sender:
    """Both senders."""
    return request.param  # type: ignore[no-any-return] # a value of `params`


def answering(status: int = 200, *fields: str, body: bytes = b"") -> Script:
    """Return a script that gives each request this answer."""
    return lambda exchange, _: exchange.answer(body, status, *fields)


@pytest.fixture
def receiver() -> Iterator[ScriptedServer]:
    """A receiver that answers 200. A test may replace its script."""
    with scripted_server(answering()) as server:
        yield server


def headers(exchange: Exchange) -> dict[str, str]:
    """Return the header fields of a request."""
    lines = exchange.head.split("\r\n")[1:]
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}


def outcome(cls: Sender, endpoint: WebhookEndpoint, **options: Any) -> Exception | None:
    """Return the failure of one attempt, or `None` if it succeeded."""
    with sending(cls, endpoint, **options) as send:
        try:
            send(a_delivery(endpoint))
        except IncomingPaymentsError as error:
            return error
    return None


# --- signatures ----------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", [SECRET, OTHER_SECRET])
def test_official_library_accepts_each_secret(cls: Sender, receiver: ScriptedServer, secret: str) -> None:
    """During a rotation, a receiver with the old secret and one with the new secret accept the same webhook."""
    endpoint = an_endpoint(receiver.url, secrets=[SECRET, OTHER_SECRET])
    with sending(cls, endpoint) as send:
        send(a_delivery(endpoint, a_credit(2, 500, 500)))
    [exchange] = receiver.requests
    read = standardwebhooks.Webhook(secret).verify(exchange.body, headers(exchange))
    assert read["type"] == "payment.credited"
    assert read["data"]["creditedAmount"] == {"value": "500", "assetCode": "USD", "assetScale": 2}


def test_official_library_refuses_another_secret(cls: Sender, receiver: ScriptedServer) -> None:
    """The check above can fail: with another secret, another body or another id, there is no matching signature."""
    endpoint = an_endpoint(receiver.url)
    with sending(cls, endpoint) as send:
        send(a_delivery(endpoint))
    [exchange] = receiver.requests
    for secret, body, changes in (
        (OTHER_SECRET, exchange.body, {}),
        (SECRET, exchange.body + b" ", {}),
        (SECRET, exchange.body, {"webhook-id": "another"}),
    ):
        with pytest.raises(standardwebhooks.WebhookVerificationError):
            standardwebhooks.Webhook(secret).verify(body, headers(exchange) | changes)


@pytest.mark.parametrize("size", [24, 64])
def test_secret_may_have_24_to_64_bytes(size: int) -> None:
    """These are the bounds of Standard Webhooks."""
    secret = "whsec_" + base64.b64encode(bytes(size)).decode()
    endpoint = an_endpoint(secrets=[secret])
    request = endpoint.request(a_delivery(endpoint), datetime.now(UTC))
    standardwebhooks.Webhook(secret).verify(request.body, dict(request.headers))


@pytest.mark.parametrize("raw", [bytes(range(32)), bytes(range(32)) + PUBLIC])
def test_ed25519_signature_is_that_of_the_key(cls: Sender, receiver: ScriptedServer, raw: bytes) -> None:
    """A private key signs with the version v1a, beside the secrets for HMAC."""
    endpoint = an_endpoint(receiver.url, secrets=[private_key(raw), SECRET])
    with sending(cls, endpoint) as send:
        send(a_delivery(endpoint))
    [exchange] = receiver.requests
    fields = headers(exchange)
    asymmetric, symmetric = fields["webhook-signature"].split(" ")
    content = f"{fields['webhook-id']}.{fields['webhook-timestamp']}.".encode() + exchange.body
    assert (asymmetric[:4], symmetric[:3]) == ("v1a,", "v1,")
    KEY.public_key().verify(base64.b64decode(asymmetric[4:]), content)
    with pytest.raises(InvalidSignature):
        KEY.public_key().verify(base64.b64decode(asymmetric[4:]), content + b" ")
    standardwebhooks.Webhook(SECRET).verify(exchange.body, fields)


def test_retry_has_the_same_id_and_body_and_another_timestamp(cls: Sender, receiver: ScriptedServer) -> None:
    """A receiver drops duplicates by the id. The timestamp is that of the attempt, in whole seconds."""
    times = iter([BEGIN + timedelta(seconds=0.9)] * 2 + [BEGIN + timedelta(hours=1)] * 2)
    endpoint = an_endpoint(receiver.url)
    delivery = a_delivery(endpoint)
    with sending(cls, endpoint, clock=lambda: next(times)) as send:
        send(delivery)
        send(delivery)
    first, second = map(headers, receiver.requests)
    assert first["webhook-id"] == second["webhook-id"] == delivery.id == f"{PAYMENT}_1_1"
    assert [int(each["webhook-timestamp"]) - int(BEGIN.timestamp()) for each in (first, second)] == [0, 3600]
    assert [exchange.body for exchange in receiver.requests] == [delivery.payload] * 2
    assert first["webhook-signature"] != second["webhook-signature"]


def test_request_is_a_post_of_json(cls: Sender, receiver: ScriptedServer) -> None:
    """The path stays as it is, with its query, its slash and its percent-encoding."""
    url = receiver.url.replace("http:", "HTTP:").replace("/introspect", "/a%2fb/?key=%41")
    assert outcome(cls, an_endpoint(url)) is None
    [exchange] = receiver.requests
    assert exchange.head.startswith("POST /a%2fb/?key=%41 HTTP/1.1\r\n")
    assert headers(exchange)["content-type"] == "application/json"
    assert headers(exchange)["user-agent"] == "incoming-payments"
    assert json.loads(exchange.body)["type"] == "payment.created"


def test_thin_endpoint_gets_thin_bodies() -> None:
    """The renderer of the endpoint leaves out all but ids and versions."""
    [thin, full] = (json.loads(an_endpoint(thin=thin).render([a_credit(2, 5, 5)])) for thin in (True, False))
    assert set(thin["data"]) == {"paymentId", "firstVersion", "lastVersion"} < set(full["data"])


def test_connection_carries_several_webhooks(cls: Sender, receiver: ScriptedServer) -> None:
    """A second webhook needs no second TLS handshake."""
    endpoint = an_endpoint(receiver.url)
    with sending(cls, endpoint) as send:
        for version in (2, 3, 4):
            send(a_delivery(endpoint, a_credit(version, 5, 5)))
    assert (len(receiver.requests), receiver.connections) == (3, 1)


# --- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_status_2xx_is_a_success(cls: Sender, receiver: ScriptedServer, status: int) -> None:
    """The body of the answer has no meaning."""
    receiver.script = answering(status, body=b"" if status == 204 else b"no JSON")
    assert outcome(cls, an_endpoint(receiver.url)) is None


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok", b"HTTP/1.0 200 OK\r\n\r\n"])
def test_receiver_that_answers_and_closes_is_a_success(cls: Sender, receiver: ScriptedServer, answer: bytes) -> None:
    """A receiver may close the connection to end its answer."""

    def script(exchange: Exchange, _: int) -> None:
        exchange.send(answer)
        exchange.connection.shutdown(socket.SHUT_RDWR)

    receiver.script = script
    endpoint = an_endpoint(receiver.url)
    with sending(cls, endpoint) as send:
        send(a_delivery(endpoint))
        send(a_delivery(endpoint))
    assert receiver.connections == 2


@pytest.mark.parametrize("status", [400, 401, 404, 500, 503])
def test_other_status_is_a_failure(cls: Sender, receiver: ScriptedServer, status: int) -> None:
    """The text of the failure has the status, for the operator."""
    receiver.script = answering(status, body=b"a stack trace")
    failure = outcome(cls, an_endpoint(receiver.url))
    assert type(failure) not in (RetryLater, HandlerGone)
    assert str(failure) == f"the endpoint answered with status {status}"


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308, 399])
def test_redirect_is_a_failure(cls: Sender, receiver: ScriptedServer, status: int) -> None:
    """A redirect could lead to a private address, so it is never followed."""
    with scripted_server(answering()) as private:
        receiver.script = answering(status, f"Location: {private.url}")
        failure = outcome(cls, an_endpoint(receiver.url))
        assert private.requests == []
    assert "redirects are not followed: correct the URL" in str(failure)


def test_status_410_disables(cls: Sender, receiver: ScriptedServer) -> None:
    """The receiver wants no webhooks any more."""
    receiver.script = answering(410, "Retry-After: 5")
    assert isinstance(outcome(cls, an_endpoint(receiver.url)), HandlerGone)


NOW: Final = datetime(2026, 1, 1, 12, 0, 0, 500_000, tzinfo=UTC)
IN_A_MINUTE: Final = format_datetime(NOW.replace(microsecond=0) + timedelta(minutes=1), usegmt=True)
WAITS: Final[list[tuple[int, str, float | None]]] = [
    (503, "120", 120.0),
    (500, "120", 120.0),
    (404, " 7 ", 7.0),
    (503, "1", 1.0),
    (503, "Thu, 01 Jan 2026 13:01:00 +0100", 60.0),
    (503, "99999999999", WEBHOOK_RETRY_AFTER_S_MAX),
    (503, IN_A_MINUTE, 60.0),
    (503, "Thu, 01 Jan 2026 12:01:00 -0000", 60.0),
    (503, "Fri, 01 Jan 2027 12:01:00 GMT", WEBHOOK_RETRY_AFTER_S_MAX),
    (503, "Thu, 01 Jan 2026 11:00:00 GMT", None),
    (503, "0", None),
    (503, "-5", None),
    (503, "1.5", None),
    (503, "soon", None),
    (503, "9" * 400, WEBHOOK_RETRY_AFTER_S_MAX),
    (503, "Thu, 01 Jan 2026 12:01:00 +999999999999999999", None),
    (503, "Thu, 99 Jan 2026 12:01:00 GMT", None),
    (503, "Thu, 01 Jan 0000 12:01:00 GMT", None),
    (503, "\u00b2", None),
    *((status, "1", WEBHOOK_THROTTLE_S_MIN) for status in (429, 502, 504)),
    *((status, "", WEBHOOK_THROTTLE_S_MIN) for status in (429, 502, 504)),
    *((status, "900", 900.0) for status in (429, 502, 504)),
]


@pytest.mark.parametrize(("status", "value", "wait_s"), WAITS)
def test_retry_after_is_honoured(
    cls: Sender, receiver: ScriptedServer, status: int, value: str, wait_s: float | None
) -> None:
    """`Retry-After` is a number of seconds or a date, and counts within a bound. Other texts are ignored."""

    def script(exchange: Exchange, _: int) -> None:
        exchange.send(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\nRetry-After: {value}\r\n\r\n".encode("latin-1"))

    receiver.script = script
    failure = outcome(cls, an_endpoint(receiver.url), clock=lambda: NOW)
    assert (getattr(failure, "after_s", None), f"status {status}" in str(failure)) == (wait_s, True)


@pytest.mark.parametrize(
    ("status", "value", "throttle_s"),
    [(429, "1", 1), (429, "120", 120), (429, "", 0), (503, "120", 0), (502, "120", 0)],
)
def test_too_many_requests_throttle_all_deliveries(
    cls: Sender, receiver: ScriptedServer, status: int, value: str, throttle_s: float
) -> None:
    """`Retry-After` holds for the other deliveries too if the status is about the requests of this client."""
    receiver.script = lambda exchange, _: exchange.answer(b"", status, f"Retry-After: {value}")
    failure = outcome(cls, an_endpoint(receiver.url))
    assert isinstance(failure, RetryLater)
    assert failure.throttle_s == throttle_s


# --- receivers that misbehave ------------------------------------------------------------------------


def hangs(exchange: Exchange, _: int) -> None:
    """Answer nothing."""
    exchange.ended.wait(30)


def drips_headers(exchange: Exchange, _: int) -> None:
    """Send the header fields byte by byte."""
    exchange.drip(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1000)


def drips_body(exchange: Exchange, _: int) -> None:
    """Send the body byte by byte."""
    exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    exchange.drip(b"x" * 1000)


def sends_interim_responses(exchange: Exchange, _: int) -> None:
    """Send interim responses for ever."""
    while not exchange.ended.is_set():
        exchange.send(b"HTTP/1.1 102 Processing\r\n\r\n")


def sends_endless_body(exchange: Exchange, _: int) -> None:
    """Send a body that never ends."""
    exchange.send(b"HTTP/1.1 200 OK\r\n\r\n")
    while not exchange.ended.is_set():
        exchange.send(b"x" * 65_536)


def sends_endless_chunks(exchange: Exchange, _: int) -> None:
    """Send chunks that never end."""
    exchange.send(b"HTTP/1.1 500 X\r\nTransfer-Encoding: chunked\r\n\r\n")
    while not exchange.ended.is_set():
        exchange.send(b"1000\r\n" + b"x" * 4096 + b"\r\n")


def cuts_off(exchange: Exchange, _: int) -> None:
    """Close the connection in the middle of the body."""
    exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nx")
    raise OSError


def hangs_up(_: Exchange, __: int) -> None:
    """Close the connection without an answer."""
    raise OSError


def sends_no_http(exchange: Exchange, _: int) -> None:
    """Send another protocol."""
    exchange.send(b"SSH-2.0-x\r\n\r\n")
    raise OSError


def repeats_the_path(exchange: Exchange, _: int) -> None:
    """Send a malformed status line with the target of the request."""
    target = exchange.head.split(" ")[1]
    exchange.send(f"HTTP/1.1 no such page: {target}\r\n\r\n".encode())
    raise OSError


MISBEHAVIOUR: Final[dict[str, tuple[Script, str]]] = {
    "hangs": (hangs, "did not answer within 0.4 s"),
    "drips its headers": (drips_headers, "did not answer within 0.4 s"),
    "drips its body": (drips_body, "did not answer within 0.4 s"),
    "sends interim responses": (sends_interim_responses, ""),
    "sends an endless body": (sends_endless_body, ""),
    "sends endless chunks": (sends_endless_chunks, ""),
    "cuts its answer off": (cuts_off, "gave no valid TLS or HTTP answer"),
    "hangs up": (hangs_up, ""),
    "sends no HTTP": (sends_no_http, ""),
    "repeats the path": (repeats_the_path, "gave no valid TLS or HTTP answer"),
    "sends a page that is too large": (
        answering(body=b"x" * (WEBHOOK_ANSWER_BYTES_MAX + 1)),
        f"larger than {WEBHOOK_ANSWER_BYTES_MAX} bytes",
    ),
}


@pytest.mark.parametrize("name", MISBEHAVIOUR)
def test_misbehaviour_is_a_failure_within_the_time(cls: Sender, receiver: ScriptedServer, name: str) -> None:
    """Each attempt ends within its time, and its failure shows neither the path of the URL nor a secret."""
    receiver.script, expected = MISBEHAVIOUR[name]
    begin_s = time.monotonic()
    failure = outcome(cls, an_endpoint(f"{receiver.url}/{HIDDEN}?key={HIDDEN}", timeout_s=0.4))
    assert time.monotonic() - begin_s < 2.5
    assert isinstance(failure, IncomingPaymentsError)
    assert expected in str(failure)
    assert "the endpoint" in str(failure)
    assert_no_secret(str(failure), repr(failure), repr(failure.details))


def assert_no_secret(*texts: str) -> None:
    """No text has a secret, or the path of the URL."""
    for text in texts:
        assert HIDDEN not in text
        assert SECRET.removeprefix("whsec_") not in text
        assert "http" not in text.replace("HTTP", "").replace("https://shop.example", "")


def test_long_url_is_not_in_the_failure(cls: Sender) -> None:
    """The text of a failure is cut off, and shows no part of a URL that is cut off with it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    failure = outcome(cls, an_endpoint(f"http://127.0.0.1:{port}/{HIDDEN}?{'x' * 900}", timeout_s=0.4))
    assert str(failure).startswith("the endpoint cannot be reached")
    assert_no_secret(str(failure).replace("'127.0.0.1'", ""))


def test_receiver_does_not_occupy_the_event_loop(receiver: ScriptedServer) -> None:
    """Another thread handles the bytes of a receiver. A hostile one can cause much work by TLS messages."""
    arrived = threading.Event()

    def script(exchange: Exchange, _: int) -> None:
        arrived.set()
        exchange.answer(b"", 204)

    async def send() -> bool:
        sender = AsyncWebhookSender(endpoint)
        attempt = asyncio.ensure_future(sender(a_delivery(endpoint)))
        await asyncio.sleep(0)  # the attempt begins
        is_sent = arrived.wait(10)  # meanwhile, the event loop stands still
        await attempt
        await sender.aclose()
        return is_sent

    receiver.script, endpoint = script, an_endpoint(receiver.url)
    assert asyncio.run(send())


# --- addresses -----------------------------------------------------------------------------------


@pytest.fixture
def internal() -> Iterator[ScriptedServer]:
    """An internal HTTPS server on loopback, which no webhook may reach."""
    with scripted_server(answering(), tls=contexts()[0]) as server:
        yield server


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "0x7f000001", "2130706433", "[::ffff:127.0.0.1]"])
def test_private_address_is_refused(cls: Sender, internal: ScriptedServer, host: str) -> None:
    """Each spelling of a private address is refused at the socket."""
    endpoint = an_endpoint(internal.url.replace("127.0.0.1", host), allow_private=False, tls=contexts()[1], timeout_s=2)
    assert isinstance(outcome(cls, endpoint), IncomingPaymentsError)
    assert internal.connections == 0


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["::1"], ["10.0.0.1", "127.0.0.1"], ["169.254.169.254"], ["fd00::1"], ["::ffff:127.0.0.1"]],
)
def test_name_with_a_private_address_is_refused(
    cls: Sender, internal: ScriptedServer, addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of a name can let it resolve to an internal address, also after the configuration was checked."""
    names = inject_resolver(monkeypatch, lambda _: addresses)
    endpoint = an_endpoint(
        internal.url.replace("127.0.0.1", "client.example"), allow_private=False, tls=contexts()[1], timeout_s=2
    )
    failure = outcome(cls, endpoint)
    assert "may not connect to the address" in str(failure)
    assert "which is not public (see allow_private)" in str(failure)
    assert (names, internal.connections) == (["client.example"], 0)


def test_private_address_is_allowed_by_a_setting(cls: Sender, internal: ScriptedServer) -> None:
    """The receiver may be in the network of the host."""
    assert outcome(cls, an_endpoint(internal.url, tls=contexts()[1])) is None
    assert len(internal.requests) == 1


def test_unknown_certificate_is_refused(cls: Sender, internal: ScriptedServer) -> None:
    """A receiver needs a certificate that the TLS context trusts."""
    assert "certificate verify failed" in str(outcome(cls, an_endpoint(internal.url)))
    assert internal.requests == []


# --- settings ------------------------------------------------------------------------------------


def test_endpoint_is_a_consumer() -> None:
    """The filters and times of the endpoint are those of its consumer. It joins credits by default."""
    consumer = WebhookEndpoint(
        name="shop",
        url="https://shop.example/hooks",
        secrets=[SECRET],
        kinds=["credited", "completed"],
        wallet_addresses=["https://bank.example/alice/"],
    ).consumer
    assert (consumer.name, consumer.kinds) == (consumer_name("shop"), frozenset({"credited", "completed"}))
    assert consumer.wallet_addresses == frozenset({WalletAddressUrl("https://bank.example/alice")})
    assert (consumer.joins_credits, consumer.credit_delay_s) == (True, WEBHOOK_CREDIT_DELAY_S_DEFAULT)
    assert (consumer.down_after_s, consumer.disable_after_s) == (WEBHOOK_DOWN_S_DEFAULT, WEBHOOK_DISABLE_S_DEFAULT)
    other = an_endpoint(joins_credits=False, down_after_s=None, disable_after_s=60).consumer
    assert (other.joins_credits, other.down_after_s, other.disable_after_s) == (False, None, 60)


def test_texts_of_an_endpoint_show_no_secret(cls: Sender) -> None:
    """The representations of the endpoint and of its sender show the host of the URL, and not its path."""
    endpoint = an_endpoint(f"https://shop.example/{HIDDEN}")
    with sending(cls, endpoint) as send:
        texts = [repr(endpoint), str(endpoint), repr(endpoint.secrets), repr(send.sender)]
    assert "url=https://shop.example, " in texts[0]
    assert_no_secret(*texts)


SHORT: Final = "whsec_" + base64.b64encode(bytes(23)).decode()
LONG: Final = "whsec_" + base64.b64encode(bytes(65)).decode()
WRONG: Final[list[tuple[dict[str, Any], str, str]]] = [
    ({"secrets": SECRET}, "secrets", "secrets must be a list of strings that begin with whsec_ or whsk_"),
    ({"secrets": None}, "secrets", "secrets must be a list of strings that begin with whsec_ or whsk_"),
    ({"secrets": []}, "secrets", "secrets must have 1 to 8 secrets, not 0"),
    ({"secrets": [SECRET] * 9}, "secrets", "secrets must have 1 to 8 secrets, not 9"),
    ({"secrets": [SECRET, HIDDEN]}, "secrets[1]", "secrets[1] must be a string that begins with whsec_ or whsk_"),
    ({"secrets": [HIDDEN.encode()]}, "secrets[0]", "secrets[0] must be a string that begins with whsec_ or whsk_"),
    ({"secrets": [SHORT]}, "secrets[0]", "secrets[0] must have 24 to 64 bytes after whsec_, and has 23"),
    ({"secrets": [LONG]}, "secrets[0]", "secrets[0] must have 24 to 64 bytes after whsec_, and has 65"),
    (
        {"secrets": [f"whsec_{HIDDEN}"]},
        "secrets[0]",
        "secrets[0] must have base64 with padding after its prefix, and no space or line break",
    ),
    (
        {"secrets": [f"{SECRET}\n"]},
        "secrets[0]",
        "secrets[0] must have base64 with padding after its prefix, and no space or line break",
    ),
    (
        {"secrets": ["whsec_€"]},
        "secrets[0]",
        "secrets[0] must have base64 with padding after its prefix, and no space or line break",
    ),
    ({"secrets": [private_key(bytes(31))]}, "secrets[0]", "secrets[0] must have the 32 bytes of a private key for"),
    ({"secrets": [private_key(bytes(64))]}, "secrets[0]", "secrets[0] has a public key that does not belong to its"),
    ({"secrets": ["whpk_AAAA"]}, "secrets[0]", "secrets[0] is a public key: give the private key, which begins with"),
    ({"name": "The Shop"}, "name", "the name of a consumer must have 1 to 64 of the characters"),
    ({"url": "shop.example/hooks"}, "url", "url must be an absolute http or https URL"),
    ({"url": None}, "url", "url must be an absolute http or https URL"),
    ({"url": "https://user:pass@shop.example/"}, "url", "url must not contain a user name or password"),
    ({"url": "http://shop.example/", "allow_private": False}, "url", "url must be an https URL"),
    ({"kinds": ["paid"]}, "kinds", "kinds must be some of created, credited, completed, expired"),
    ({"wallet_addresses": ["$bank.example"]}, "walletAddress", "walletAddress is a payment pointer"),
    ({"credit_delay_s": -1}, "credit_delay_s", "credit_delay_s must be a number of seconds from 0 to 3600"),
    ({"disable_after_s": "5 days"}, "disable_after_s", "disable_after_s must be a number of seconds from 0 to"),
    ({"joins_credits": 1}, "joins_credits", "joins_credits must be True or False, not of the type int"),
    ({"thin": "yes"}, "thin", "thin must be True or False, not of the type str"),
    ({"allow_private": None, "url": "http://x.example"}, "url", "url must be an https URL"),
    ({"timeout_s": 31}, "timeout_s", "timeout_s must be a number from 0.01 to 30"),
    ({"tls": True}, "tls", "tls must be an ssl.SSLContext, not of the type bool"),
]


@pytest.mark.parametrize(("change", "setting", "text"), WRONG)
def test_wrong_setting_is_refused_by_name(change: dict[str, Any], setting: str, text: str) -> None:
    """A wrong setting is an error when the endpoint is built. The error says what to change, and shows no secret."""
    with pytest.raises(ConfigurationError) as refused:
        an_endpoint(**change)
    assert str(refused.value).startswith(text)
    assert refused.value.details["setting"] == setting
    assert HIDDEN not in f"{refused.value!r} {refused.value.__context__!r}"
