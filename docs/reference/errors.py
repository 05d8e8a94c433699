"""The exceptions of `docs/errors.md`: when each is raised, how it is answered, and what to do."""

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Final

from incoming_payments import errors
from incoming_payments.endpoints.open_payments import STATUS
from incoming_payments.errors import IncomingPaymentsError
from incoming_payments.ilp.receive import REFUSALS
from reference.markdown import sentence, table

Kind = type[IncomingPaymentsError]

# What to do about each exception. Without an entry, the last paragraph of its docstring says it.
REMEDIES: Final[Mapping[Kind, str]] = {
    errors.InvalidValue: "Correct the argument. The description says which values are valid.",
    errors.MalformedJson: "The client corrects this member.",
    errors.MalformedIdempotencyKey: "The client sends one shorter string in double quotes.",
    errors.MalformedQuery: "The client corrects this parameter.",
    errors.MalformedField: "Correct the header field or the message, as the description says.",
    errors.MalformedKey: "Use a public key of a supported kind and size, as the description says.",
    errors.MalformedAddress: "Check that this process has the ILP address and the server secrets of the process that "
    "issued the address.",
    errors.MalformedPacket: "The sender corrects its packet.",
    errors.TokenRefused: "The client requests a new grant. If every client gets this error, read the log: it names a "
    "[setting](introspection.md#a-wrong-setting) that may be the reason.",
    errors.SignatureRefused: "The client signs again, as the description says. Your log can name [the likeliest "
    "mistake](explain.md).",
    errors.AccessForbidden: "The client requests a grant for this wallet address, or with the `-all` form of the "
    "action.",
    errors.PolicyRefused: "Nothing: [your own rule](approval.md) refused.",
    errors.TermsRefused: "Change this member. If `expiresAt` is too far ahead, you can raise `expiry_s_max` of "
    "the policy.",
    errors.PaymentCompleted: "Return the money, or book it elsewhere.",
    errors.PaymentExpired: "Return the money, or book it elsewhere. Before that, wait until no call with this credit "
    "id is in flight.",
    errors.AmountOverflow: "Return the money, or book it elsewhere.",
    errors.AmountTooLarge: "Nothing: the sender learns the amount, and sends less.",
    errors.AssetMismatch: "Convert the amount to the asset of the wallet address before you credit it.",
    errors.CreditIdReused: "Use the id of the transfer as the credit id. Find out which of the two calls was wrong.",
    errors.PaymentNotFound: "Compare the id with that of the payment. Check that this process uses the right database.",
    errors.IdempotencyKeyReused: "Use a new key for each new request.",
    errors.CursorNotFound: "Use a cursor of the same list, or begin without a cursor.",
    errors.PacketExpired: "Nothing: the sender sends the money again. If this happens often, find out why the store is "
    "slow.",
    errors.ApprovalPending: "Repeat the request later.",
    errors.QuotaExceeded: "Wait for `retry_after_s`, or give the client a larger [quota](quotas.md).",
    errors.ConsumerNotFound: "Register the consumer, or correct its name. `incoming-payments consumers` lists all "
    "names.",
    errors.DeliveryNotFound: "Correct the id. `incoming-payments dead-letters` lists all ids.",
    errors.WalletAddressNotFound: "Use the URL of a wallet address that your port `wallet_addresses` finds.",
    errors.WalletAddressInactive: "Use another wallet address.",
    errors.HttpRefused: "Answer with this status and these header fields, as `http_refusal` does.",
    errors.PortUnavailable: "Repeat the call. Correct the system that the description names.",
    errors.AuthorizationServerUnavailable: "Repeat the call. Check that the service reaches the authorization server.",
    errors.ApprovalUnavailable: "Repeat the call. Find the reason in your [approval port](approval.md).",
    errors.ClientKeysUnavailable: "Repeat the call. Check that the service reaches the key set of the client.",
    errors.ClockBehind: "Correct the clocks of all machines, and follow [these "
    "steps](http.md#after-a-clock-that-was-ahead).",
    errors.WalletAddressesUnavailable: "Repeat the call. Check the service for wallet addresses.",
    errors.StoreUnusable: "Do what the description says, and open the store again.",
    errors.BackupFailed: "Correct what the description names, and run the backup again.",
    errors.AuditFailed: "Correct what the description names, and run the [audit](audit.md) again.",
    errors.CopyFailed: "Correct what the description names, and run the [copy](moving.md) again.",
    errors.PaymentExists: "Give the service a working source of random ids.",
    errors.BrokenDecision: "Report the bug, with the traceback.",
    errors.ApprovalRequired: "Report the bug, with the traceback.",
    errors.LeaseLost: "Roll back your own transaction: another attempt handles the delivery.",
    errors.RetryLater: "Raise it in a [handler](events.md#failures), to delay the next attempt.",
    errors.HandlerGone: "Raise it in a handler that is no longer needed. [`incoming-payments "
    "enable-consumer`](cli.md#enable-consumer) enables the consumer again.",
    errors.PortMissing: "Pass the [port](ports.md) to `Ports`.",
    errors.FlowStuck: "Call the function again for a new flow. If that does not help, report the bug.",
    errors.ConfigurationError: "Correct the [setting](settings.md), as the description says.",
}

# The ILP errors that the receiver decides about before the payment or the store is asked.
_BEFORE_THE_STORE: Final[Mapping[Kind, str]] = {
    errors.MalformedPacket: "F01, or F06 for the data of the packet",
    errors.MalformedAddress: "F02",
}
_GROUPS: Final = (errors.Malformed, errors.PaymentRefused, errors.Refused, errors.StoreError, errors.PortUnavailable)
_TITLES: Final = ("exception, and its code", "raised when", "answer", "what to do")
_BASES: Final = {IncomingPaymentsError, errors.Malformed, errors.Refused, errors.PaymentRefused, errors.StoreError}


def input_errors() -> str:
    """Return the exceptions for input that cannot be read."""
    return _exceptions(errors.Malformed)


def credit_refusals() -> str:
    """Return the reasons why a payment cannot accept a credit."""
    return _exceptions(errors.PaymentRefused)


def refusals() -> str:
    """Return the other reasons for which a valid request is refused."""
    return _exceptions(errors.Refused)


def outages() -> str:
    """Return the exceptions of a store or of another port that cannot answer."""
    rows = [*_below(errors.StoreError), *_below(errors.PortUnavailable)]
    return table(_TITLES, map(_row, rows))


def other_errors() -> str:
    """Return all other exceptions."""
    return _exceptions(IncomingPaymentsError)


def _exceptions(group: Kind) -> str:
    return table(_TITLES, map(_row, _below(group)))


def _below(group: Kind) -> Iterator[Kind]:
    """Yield the classes below `group` in the order of the module. Each class belongs to the first group that fits."""
    for cls in vars(errors).values():
        if not (inspect.isclass(cls) and issubclass(cls, IncomingPaymentsError)) or cls in _BASES:
            continue
        if next((one for one in _GROUPS if issubclass(cls, one)), IncomingPaymentsError) is group:
            yield cls


def _row(cls: Kind) -> tuple[str, str, str, str]:
    *meaning, last = _paragraphs(cls)
    if cls in REMEDIES:
        meaning, last = [*meaning, last], REMEDIES[cls]
    if not meaning:
        raise ValueError(f"reference/errors.py: say what to do about {cls.__name__} in REMEDIES, or in its docstring")
    return f"`{cls.__name__}`<br>{_code(cls)}", " ".join(meaning), _answer(cls), last


def _paragraphs(cls: Kind) -> list[str]:
    """Return the paragraphs of the docstring of `cls`, without examples."""
    paragraphs = inspect.cleandoc(cls.__doc__ or "").split("\n\n")
    texts = [re.sub(r" \(spec section [^)]*\)", "", re.sub(r"\s+", " ", one)) for one in paragraphs]
    return [sentence(text) for text in texts if not text.startswith(">>>")]


def _code(cls: Kind) -> str:
    if "code" in inspect.signature(cls.__init__).parameters and cls is not errors.MalformedField:
        return "one of several codes"
    return f"`{cls.code}`"


def _answer(cls: Kind) -> str:
    """Return the HTTP status and the ILP error that answer this exception, as far as it has them."""
    status = next((str(STATUS[one]) for one in cls.__mro__ if one in STATUS), "")
    if cls is errors.HttpRefused:
        status = "its `status`"
    ilp = next((str(code) for one, (code, _) in REFUSALS.items() if issubclass(cls, one)), "")
    ilp = _BEFORE_THE_STORE.get(cls, ilp)
    return "<br>".join(filter(None, [f"HTTP {status}" if status else "", f"ILP {ilp}" if ilp else ""]))
