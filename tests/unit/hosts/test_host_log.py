"""The log of a host: its lines, their number of each kind, and no diagnosis that is not logged."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from attrs import evolve

from incoming_payments.api import Response
from incoming_payments.errors import SignatureRefused, StoreUnavailable
from incoming_payments.hosts import host_log
from incoming_payments.hosts.host_log import HostLog
from incoming_payments.httpsig import Evidence, Policy, PrivateKey, PublicKey, RequestMessage, sign
from incoming_payments.limits import EXPLAINED_A_MINUTE_MAX, LOGGED_A_MINUTE_MAX

logger = logging.getLogger("tests.host_log")


class CountedKey(PublicKey):
    """A key that counts how often it is used."""

    uses = 0

    def verify(self, signature: bytes, data: bytes) -> bool:
        """Count, and verify as any key does."""
        type(self).uses += 1
        return super().verify(signature, data)


KEY: Final = PrivateKey.generate_ed25519("key-1")
NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
SIGNED: Final = sign(RequestMessage("GET", "http://ase.example/", (("Authorization", "GNAP token"),)), KEY, created=NOW)
HEADING: Final = "signature refused, signature_invalid: it does not fit"


def refused() -> Response:
    """Return the response to a request that was signed for another URL."""
    public = KEY.public_key()
    keys = {"key-1": CountedKey(public.kid, public.algorithm, public._key)}
    refusal = SignatureRefused("signature_invalid", "it does not fit")
    refusal.evidence = Evidence(evolve(SIGNED, target_uri="https://ase.example/"), keys, Policy(), NOW)
    return Response(401, (), b"", cause=refusal)


def in_trouble() -> Response:
    """The answer when the store cannot do its work now."""
    return Response(200, (), b"", cause=StoreUnavailable("locked"))


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the first line of each message."""
    return [record.getMessage().partition("\n")[0] for record in caplog.records]


def fail(log: HostLog) -> None:
    """Let a request fail."""
    try:
        raise RuntimeError("gone")
    except RuntimeError as error:
        log.failed(error)


def test_answers_without_anything_to_say_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """Such responses leave no line, and a refusal is explained only with `explain`."""
    log = HostLog(logger, explain=True)
    for _ in range(2 * EXPLAINED_A_MINUTE_MAX):
        log.note(Response(404, (), b""))
    log.note(refused())
    HostLog(logger).note(refused())
    assert messages(caplog) == [f"incoming payments: {HEADING}"]


@pytest.mark.parametrize(
    ("happen", "bound", "line", "left_out"),
    [
        (fail, LOGGED_A_MINUTE_MAX, "a request failed", "more failures were not logged"),
        (
            lambda log: log.note(in_trouble()),
            LOGGED_A_MINUTE_MAX,
            "the store is unavailable; clients were asked to retry: locked",
            "more store outages were not logged",
        ),
        (
            lambda log: log.note(refused()),
            EXPLAINED_A_MINUTE_MAX,
            HEADING,
            "more refused signatures were not logged",
        ),
    ],
    ids=["failure", "trouble", "refusal"],
)
def test_each_kind_is_bounded_and_the_others_counted(
    caplog: pytest.LogCaptureFixture, happen: Callable[[HostLog], None], bound: int, line: str, left_out: str
) -> None:
    """So many within a minute; the number of the rest is said with the first of the next."""
    now = 0.0
    log = HostLog(logger, explain=True, clock=lambda: now)
    for _ in range(bound + 17):
        happen(log)
    said = [f"incoming payments: {line}"] * bound
    assert said == messages(caplog)
    now = 60.0
    happen(log)
    said += [f"incoming payments: 17 {left_out}", f"incoming payments: {line}"]
    assert said == messages(caplog)


def test_no_kind_silences_another(caplog: pytest.LogCaptureFixture) -> None:
    """The limit of one kind does not suppress the lines of another."""
    log = HostLog(logger, explain=True)
    for _ in range(2 * LOGGED_A_MINUTE_MAX):
        log.note(refused())
    for _ in range(2 * LOGGED_A_MINUTE_MAX):
        log.note(in_trouble())
    fail(log)
    assert caplog.records[-1].getMessage() == "incoming payments: a request failed"
    assert len(caplog.records) == EXPLAINED_A_MINUTE_MAX + LOGGED_A_MINUTE_MAX + 1


def test_a_diagnosis_that_is_not_logged_is_not_computed() -> None:
    """A diagnosis costs some verifications, so none is made past the bound."""
    CountedKey.uses = 0
    log = HostLog(logger, explain=True)
    log.note(refused())
    each, CountedKey.uses = CountedKey.uses, 0
    for _ in range(EXPLAINED_A_MINUTE_MAX + 17):
        log.note(refused())
    assert each > 0
    assert CountedKey.uses == (EXPLAINED_A_MINUTE_MAX - 1) * each


def test_a_refusal_without_evidence_is_not_diagnosed(caplog: pytest.LogCaptureFixture) -> None:
    """A refusal that no caller of `verify` kept evidence for has nothing to log."""
    HostLog(logger, explain=True).note(Response(401, (), b"", cause=SignatureRefused("signature_invalid", "no")))
    assert caplog.records == []


def test_a_failure_has_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    """The traceback is logged with the failure."""
    fail(HostLog(logger))
    [record] = caplog.records
    assert record.levelname == "ERROR"
    assert "RuntimeError: gone" in caplog.text


def test_a_diagnosis_that_fails_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
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
