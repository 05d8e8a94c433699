"""The log of a host: its lines, and the limit for each kind of line."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from attrs import evolve

from incoming_payments.endpoints.open_payments import Response
from incoming_payments.endpoints.packets import PacketPolicy
from incoming_payments.errors import (
    ApprovalUnavailable,
    AuthorizationServerUnavailable,
    ClientKeysUnavailable,
    ClockBehind,
    PortUnavailable,
    SignatureRefused,
    StoreUnavailable,
    TokenRefused,
    WalletAddressesUnavailable,
)
from incoming_payments.flows.machinery.ports import Ports
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.hosts import host_log
from incoming_payments.hosts._paths import Mount
from incoming_payments.hosts.host_log import HostLog
from incoming_payments.httpsig import Evidence, Policy, PrivateKey, RequestMessage, sign
from incoming_payments.limits import EXPLAINED_A_MINUTE_MAX, LOGGED_A_MINUTE_MAX
from incoming_payments.service import IncomingPayments
from kits.service_kit import Unused
from kits.signing_keys import CountedKey
from kits.stream_kit import METHODS

logger = logging.getLogger("tests.host_log")


KEY: Final = PrivateKey.generate_ed25519("key-1")
NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
SIGNED: Final = sign(RequestMessage("GET", "http://ase.example/", (("Authorization", "GNAP token"),)), KEY, created=NOW)
SERVICE: Final = IncomingPayments(
    policy=ServicePolicy(base_url="https://ase.example/op", auth_server="https://auth.ase.example"),
    ports=Ports(store=Unused(), wallet_addresses=Unused(), introspector=Unused(), methods=METHODS),
    packets=PacketPolicy(peers=[]),
)
MOUNT: Final = Mount(SERVICE, IncomingPayments, None)
HEADING: Final = "signature refused, signature_invalid: it does not fit"


def refused() -> Response:
    """Return the response to a request that was signed for another URL."""
    public = KEY.public_key()
    keys = {"key-1": CountedKey(public.kid, public.algorithm, public._key)}
    refusal = SignatureRefused("signature_invalid", "it does not fit")
    refusal.evidence = Evidence(evolve(SIGNED, target_uri="https://ase.example/"), keys, Policy(), NOW)
    return Response(401, (), b"", cause=refusal)


def suspected() -> Response:
    """Return the response to a request that a wrong setting refuses."""
    hint = "issuer is 'a', and the introspection answer has the iss 'b'"
    refusal = TokenRefused("invalid_token", "request a new grant", hint=hint)
    return Response(401, (), b"", cause=refusal)


def store_outage() -> Response:
    """Return the response during an outage of the store."""
    return Response(200, (), b"", cause=StoreUnavailable("locked"))


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the first line of each message."""
    return [record.getMessage().partition("\n")[0] for record in caplog.records]


def fail(log: HostLog) -> None:
    """Log a failed request."""
    try:
        raise RuntimeError("gone")
    except RuntimeError as error:
        log.failed(error)


def test_responses_without_a_cause_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Such responses leave no line, and a refusal is explained only with `explain`."""
    log = HostLog(logger, explain=True)
    for _ in range(2 * EXPLAINED_A_MINUTE_MAX):
        log.note(Response(404, (), b""))
    log.note(refused())
    HostLog(logger).note(refused())
    assert messages(caplog) == [f"incoming payments: {HEADING}"]


@pytest.mark.parametrize(
    ("happen", "bound", "line", "suppressed"),
    [
        (fail, LOGGED_A_MINUTE_MAX, "a request failed", "more failures were not logged"),
        (
            lambda log: log.note(store_outage()),
            LOGGED_A_MINUTE_MAX,
            "the store is unavailable, so clients have to retry: locked",
            "more outages of the store were not logged",
        ),
        (
            lambda log: log.nothing_read("POST", "/x"),
            LOGGED_A_MINUTE_MAX,
            (
                "no byte of the body of POST '/x' arrived. The client sent no body, or code in front of the "
                "service has read the body. Such code must pass the body on with answer(..., body=...)"
            ),
            "more hints were not logged",
        ),
        (
            lambda log: log.not_found("/pay/incoming-payments/1", MOUNT),
            LOGGED_A_MINUTE_MAX,
            (
                "'/pay/incoming-payments/1' does not exist, because the service expects '/op/incoming-payments/1': set "
                "mount='/pay', or correct the path in base_url, in the proxy or in the route"
            ),
            "more hints were not logged",
        ),
        (
            lambda log: log.note(suspected()),
            LOGGED_A_MINUTE_MAX,
            "a request was refused with invalid_token: issuer is 'a', and the introspection answer has the iss 'b'",
            "more suspected settings were not logged",
        ),
        (
            lambda log: log.note(refused()),
            EXPLAINED_A_MINUTE_MAX,
            HEADING,
            "more refused signatures were not logged",
        ),
    ],
    ids=["failure", "outage", "body", "mount", "setting", "refusal"],
)
def test_each_kind_is_limited_and_counted(
    caplog: pytest.LogCaptureFixture, happen: Callable[[HostLog], None], bound: int, line: str, suppressed: str
) -> None:
    """Further lines of a minute are suppressed. The first line of the next minute has their number."""
    now = 0.0
    log = HostLog(logger, explain=True, clock=lambda: now)
    for _ in range(bound + 17):
        happen(log)
    expected = [f"incoming payments: {line}"] * bound
    assert expected == messages(caplog)
    now = 60.0
    happen(log)
    expected += [f"incoming payments: 17 {suppressed}", f"incoming payments: {line}"]
    assert expected == messages(caplog)


@pytest.mark.parametrize(
    ("error", "port"),
    [
        (StoreUnavailable("locked"), "the store"),
        (AuthorizationServerUnavailable("no answer"), "the authorization server"),
        (ApprovalUnavailable("no answer"), "the port approval"),
        (ClientKeysUnavailable("no answer"), "the port client_keys"),
        (WalletAddressesUnavailable("no answer"), "the port wallet_addresses"),
        (PortUnavailable("no answer"), "a port"),
        (ClockBehind("set back"), "the record of nonces"),
    ],
)
def test_outage_names_its_port(caplog: pytest.LogCaptureFixture, error: PortUnavailable, port: str) -> None:
    """Each port has its own line, and its own limit: a long outage of one does not hide an outage of another.

    A clock that was set back is an error for an operator, and the others are warnings.
    """
    log = HostLog(logger)
    for other in (StoreUnavailable, AuthorizationServerUnavailable, ClientKeysUnavailable, PortUnavailable):
        for _ in range(2 * LOGGED_A_MINUTE_MAX * (other is not type(error))):
            log.note(Response(503, (), b"", cause=other("x")))
    log.note(Response(503, (), b"", cause=error))
    line = f"incoming payments: {port} is unavailable, so clients have to retry: {error}"
    assert messages(caplog)[-1] == line
    assert (caplog.records[-1].levelname == "ERROR") == isinstance(error, ClockBehind)


@pytest.mark.parametrize(
    ("mount", "path", "expected", "suggested"),
    [
        ("/op", "/incoming-payments/1/2", None, None),
        ("/op", "/op/incoming-payments/", None, None),
        ("/op", "/incoming-paymentsx", None, None),
        ("/op", "/wp-login.php", None, None),
        ("/op", "/ilp", None, None),
        ("/op", "/pay/ilp", "/op/ilp", "/pay"),
        ("/op/", "/pay/ilp", "/op/ilp", "/pay"),
        ("/op", "/operator/incoming-payments", "/op/incoming-payments", "/operator"),
        ("", "/op/incoming-payments", "/incoming-payments", "/op"),
        ("/incoming-payments", "/incoming-payments/1", "/incoming-payments/incoming-payments/1", ""),
    ],
)
def test_not_found_is_explained_when_another_mount_fits(
    mount: str, path: str, expected: str | None, suggested: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """There is a line only for a path with an endpoint of the service that is not at its mount."""
    HostLog(logger).not_found(path, Mount(SERVICE, IncomingPayments, mount))
    found = [(f" expects {expected!r}: " in line, f"mount={suggested!r}" in line) for line in messages(caplog)]
    assert found == ([] if expected is None else [(True, True)])


def test_path_in_a_hint_is_ascii_and_of_limited_length(caplog: pytest.LogCaptureFixture) -> None:
    """A client cannot forge a line of the log, or fill the disk."""
    HostLog(logger).nothing_read("POST", "/\n\u2028" + 10_000 * "x")
    [line] = messages(caplog)
    assert r"POST '/\n\u2028xxx" in line
    assert len(line) < 500


def test_kinds_have_separate_limits(caplog: pytest.LogCaptureFixture) -> None:
    """The limit of one kind does not suppress the lines of another."""
    log = HostLog(logger, explain=True)
    for _ in range(2 * LOGGED_A_MINUTE_MAX):
        log.note(refused())
    for _ in range(2 * LOGGED_A_MINUTE_MAX):
        log.note(store_outage())
    fail(log)
    assert caplog.records[-1].getMessage() == "incoming payments: a request failed"
    assert len(caplog.records) == EXPLAINED_A_MINUTE_MAX + LOGGED_A_MINUTE_MAX + 1


def test_suppressed_diagnosis_is_not_computed() -> None:
    """A diagnosis costs several verifications, so none is made beyond the limit."""
    CountedKey.uses = 0
    log = HostLog(logger, explain=True)
    log.note(refused())
    each, CountedKey.uses = CountedKey.uses, 0
    for _ in range(EXPLAINED_A_MINUTE_MAX + 17):
        log.note(refused())
    assert each > 0
    assert CountedKey.uses == (EXPLAINED_A_MINUTE_MAX - 1) * each


def test_refusal_without_evidence_is_not_diagnosed(caplog: pytest.LogCaptureFixture) -> None:
    """A refusal without evidence leaves no line."""
    HostLog(logger, explain=True).note(Response(401, (), b"", cause=SignatureRefused("signature_invalid", "no")))
    assert caplog.records == []


def test_failure_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """The traceback is logged with the failure."""
    fail(HostLog(logger))
    [record] = caplog.records
    assert record.levelname == "ERROR"
    assert "RuntimeError: gone" in caplog.text


def test_failed_diagnosis_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The response does not depend on the diagnosis."""

    def fails(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(host_log, "explain", fails)
    HostLog(logger, explain=True).note(refused())
    [record] = caplog.records
    assert (record.levelname, record.getMessage()) == (
        "ERROR",
        "incoming payments: a refused signature could not be explained",
    )
    assert "ZeroDivisionError" in caplog.text
