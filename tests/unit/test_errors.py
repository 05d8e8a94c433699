"""`errors`: the exceptions match the tree in the docstring, and their codes are stable."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from incoming_payments import errors
from incoming_payments.errors import HttpRefused, IncomingPaymentsError, InvalidValue, SignatureRefused, TokenRefused

# Programs of users match on these codes: add codes, but never change one.
CODES = {
    "IncomingPaymentsError": "error",
    "InvalidValue": "invalid_value",
    "Malformed": "malformed",
    "MalformedJson": "invalid_body",
    "MalformedIdempotencyKey": "invalid_idempotency_key",
    "MalformedQuery": "invalid_query",
    "MalformedField": "malformed_field",
    "MalformedKey": "malformed_key",
    "MalformedAddress": "malformed_address",
    "MalformedPacket": "malformed_packet",
    "Refused": "refused",
    "TokenRefused": "invalid_token",
    "SignatureRefused": "invalid_signature",
    "AccessForbidden": "forbidden",
    "PolicyRefused": "refused_by_policy",
    "TermsRefused": "invalid_terms",
    "PaymentRefused": "payment_refused",
    "PaymentCompleted": "payment_completed",
    "PaymentExpired": "payment_expired",
    "AmountOverflow": "amount_overflow",
    "AmountTooLarge": "amount_too_large",
    "AssetMismatch": "asset_mismatch",
    "CreditIdReused": "credit_id_reused",
    "PaymentNotFound": "payment_not_found",
    "IdempotencyKeyReused": "idempotency_key_reused",
    "CursorNotFound": "unknown_cursor",
    "PacketExpired": "packet_expired",
    "ApprovalPending": "approval_pending",
    "QuotaExceeded": "too_many_requests",
    "WalletAddressNotFound": "unknown_wallet_address",
    "WalletAddressInactive": "inactive_wallet_address",
    "HttpRefused": "http_error",
    "PortUnavailable": "port_unavailable",
    "ApprovalUnavailable": "acceptance_unavailable",
    "AuthorizationServerUnavailable": "authorization_server_unavailable",
    "ClientKeysUnavailable": "client_keys_unavailable",
    "ClockBehind": "clock_behind",
    "WalletAddressesUnavailable": "wallet_addresses_unavailable",
    "StoreError": "store_error",
    "StoreUnavailable": "store_unavailable",
    "StoreUnusable": "store_unusable",
    "StoreStopped": "store_stopped",
    "AuditFailed": "audit_failed",
    "BackupFailed": "backup_failed",
    "CopyFailed": "copy_failed",
    "PaymentExists": "payment_exists",
    "BrokenDecision": "broken_decision",
    "ApprovalRequired": "approval_required",
    "ConsumerNotFound": "unknown_consumer",
    "DeliveryNotFound": "unknown_delivery",
    "LeaseLost": "lease_lost",
    "RetryLater": "retry_later",
    "HandlerGone": "handler_gone",
    "PortMissing": "port_missing",
    "FlowStuck": "flow_stuck",
    "ConfigurationError": "configuration_error",
}


TREE_LINE = re.compile(r"([│├└─ ]*)(\w+)(?: \((\w+)\))?(?: {2,}.*)?")  # branches, name, second base, description


def classes() -> dict[str, type[IncomingPaymentsError]]:
    """Return every exception that the module defines, by name."""
    return {
        name: cls for name, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, IncomingPaymentsError)
    }


def drawn() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each class in the tree of the docstring, with the names of its base classes."""
    above: list[str] = []
    for line in (errors.__doc__ or "").split("```")[1].strip().splitlines():
        match = TREE_LINE.fullmatch(line)
        assert match, line
        branch, name, other = match.groups()
        del above[len(branch) // 4 :]
        yield name, (*above[-1:], *([other] if other else []))
        above.append(name)


def test_tree_in_the_docstring_matches_the_classes() -> None:
    """The tree shows each class once, below its base class."""
    tree = list(drawn())
    real = {
        name: tuple(base.__name__ for base in cls.__bases__ if base is not Exception) for name, cls in classes().items()
    }
    assert dict(tree) == real
    assert len(tree) == len(real)


def test_codes_are_stable() -> None:
    """The code of each class is the code in the table above."""
    assert {name: cls.code for name, cls in classes().items()} == CODES


def test_codes_are_unique() -> None:
    """Each class has its own code."""
    assert len(set(CODES.values())) == len(CODES)
    assert all("code" in vars(cls) for cls in classes().values())


def test_error_has_its_description_and_details() -> None:
    """The description is also the message. The details are separate."""
    error = InvalidValue("write it otherwise", member="value")
    assert (str(error), error.description, error.details) == (
        "write it otherwise",
        "write it otherwise",
        {"member": "value"},
    )
    assert IncomingPaymentsError("plain").details == {}


def test_invalid_value_is_a_value_error() -> None:
    """Callers may catch `InvalidValue` as a `ValueError`."""
    with pytest.raises(ValueError, match=r"^no such value$"):
        raise InvalidValue("no such value")


@pytest.mark.parametrize("cls", [TokenRefused, SignatureRefused])
def test_refused_token_or_signature_has_its_own_code(cls: type[TokenRefused | SignatureRefused]) -> None:
    """`TokenRefused` and `SignatureRefused` take a code for each instance."""
    error = cls("expired", "ask again", action="read")
    assert (error.code, error.description, str(error)) == ("expired", "ask again", "ask again")
    assert error.details == {"action": "read"}


def test_http_refused_has_status_code_and_headers() -> None:
    """`HttpRefused` has the status, the code, the description and the header fields of its response."""
    plain = HttpRefused(413, "body_too_large", "send less")
    assert (plain.status, plain.code, plain.description, plain.headers) == (413, "body_too_large", "send less", ())
    assert HttpRefused(405, "no", "use GET", headers=(("Allow", "GET"),)).headers == (("Allow", "GET"),)


def test_messages_cite_no_document_that_their_reader_lacks() -> None:
    """Docstrings may cite the specification. Other texts cite RFCs only, because clients and operators read them."""
    found = []
    for path in Path(errors.__file__).parent.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        texts = [node for node in nodes if isinstance(node, ast.Constant) and id(node) not in docstrings]
        found += [text.value for text in texts if re.search(r"(?i)\b(spec|contract) section", str(text.value))]
    assert found == []
