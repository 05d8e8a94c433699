"""The ports of one service: `Ports` for sync ports, and `AsyncPorts` for sync and async ports."""

import inspect
import secrets
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Any

from attrs import Attribute, field, fields, frozen

from incoming_payments.domain.checks import name_of
from incoming_payments.errors import ConfigurationError
from incoming_payments.flows.machinery.approvals import ApprovalCalls
from incoming_payments.flows.machinery.blocking import LoopWatch, check_unblocking
from incoming_payments.limits import APPROVAL_S_DEFAULT, APPROVAL_S_MAX
from incoming_payments.ports import (
    ApprovalPort,
    AsyncApprovalPort,
    AsyncClientKeys,
    AsyncErasure,
    AsyncFeed,
    AsyncIntrospector,
    AsyncMethodAllocator,
    AsyncNonces,
    AsyncPaymentStore,
    AsyncQuotas,
    AsyncWalletAddresses,
    ClientKeys,
    Erasure,
    Feed,
    Introspector,
    MethodAllocator,
    Nonces,
    PaymentStore,
    Quotas,
    WalletAddresses,
)

Validator = Callable[[object, "Attribute[Any]", Any], None]


def _port(protocol: type, *, is_sync: bool = False) -> Validator:
    """Return a validator for an object with the methods of `protocol`, or `None`.

    If `is_sync` is true, the validator refuses `async def` methods. If not, it refuses a port of this library that
    would block the event loop.
    """
    methods = [name for name in vars(protocol) if not name.startswith("_")]

    def check(_: object, attribute: "Attribute[Any]", port: object) -> None:
        missing = [name for name in methods if not callable(getattr(port, name, None))]
        if port is not None and (missing or isinstance(port, type)):
            found = f"the class {port.__name__}: pass an instance" if isinstance(port, type) else name_of(port)
            noun = "methods" if len(methods) > 1 else "method"
            text = f"{attribute.name} must be an object with the {noun} {', '.join(methods)}, not {found}"
            raise ConfigurationError(text, setting=attribute.name)
        if is_sync and any(inspect.iscoroutinefunction(getattr(port, name, None)) for name in methods):
            text = f"{attribute.name} is async: pass AsyncPorts to AsyncIncomingPayments, or write the port with def"
            raise ConfigurationError(text, setting=attribute.name)
        if not is_sync:
            check_unblocking(attribute.name, port)

    return check


def _function(_: object, attribute: "Attribute[Any]", value: object) -> None:
    if not callable(value):
        text = f"{attribute.name} must be a function that takes a number of bytes, not {name_of(value)}"
        raise ConfigurationError(text, setting=attribute.name)


def _bound(_: object, attribute: "Attribute[Any]", value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= APPROVAL_S_MAX:
        text = f"{attribute.name} must be a number of seconds up to {APPROVAL_S_MAX}, not {value!r}"
        raise ConfigurationError(text, setting=attribute.name)


class _Calls:
    """The state that the drivers need to call ports."""

    approval: Any
    approval_s: float

    @cached_property
    def approval_calls(self) -> ApprovalCalls | None:
        """The calls of the port `approval`, each limited to `approval_s` seconds."""
        return None if self.approval is None else ApprovalCalls(self.approval, self.approval_s)

    @cached_property
    def loop_watch(self) -> LoopWatch:
        """The warnings about sync ports that block an event loop."""
        return LoopWatch()


@frozen(kw_only=True)
class Ports(_Calls):
    """The ports for `run`. Leave out ports that the flows of the host do not use.

    A process that only credits money needs only a `store`. If there is no port `nonces`, a request with a nonce in its
    signature is refused. If there is no port `client_keys`, a request is refused when the introspection answer for its
    token contains no key. If there is no port `approval`, every payment and packet is approved. If there is no port
    `quotas`, there are no quotas. Only a relay needs the port `feed`, and only `erase_metadata` the port `erasure`.
    `approval_s` is the number of seconds that `approval` may take. `randomness(count)` returns random bytes for ids and
    nonces. Change `randomness` only in tests.
    Raises `ConfigurationError` for an object that lacks methods of its port, for a class instead of an object, and for
    `async def` methods.
    """

    store: PaymentStore | None = field(default=None, validator=_port(PaymentStore, is_sync=True))
    wallet_addresses: WalletAddresses | None = field(default=None, validator=_port(WalletAddresses, is_sync=True))
    introspector: Introspector | None = field(default=None, validator=_port(Introspector, is_sync=True))
    client_keys: ClientKeys | None = field(default=None, validator=_port(ClientKeys, is_sync=True))
    nonces: Nonces | None = field(default=None, validator=_port(Nonces, is_sync=True))
    methods: MethodAllocator | None = field(default=None, validator=_port(MethodAllocator, is_sync=True))
    approval: ApprovalPort | None = field(default=None, validator=_port(ApprovalPort, is_sync=True))
    approval_s: float = field(default=APPROVAL_S_DEFAULT, validator=_bound)
    quotas: Quotas | None = field(default=None, validator=_port(Quotas, is_sync=True))
    erasure: Erasure | None = field(default=None, validator=_port(Erasure, is_sync=True))
    feed: Feed | None = field(default=None, validator=_port(Feed, is_sync=True))
    randomness: Callable[[int], bytes] = field(default=secrets.token_bytes, repr=False, validator=_function)


@frozen(kw_only=True)
class AsyncPorts(_Calls):
    """The ports for `arun`, each sync or async. See `Ports`.

    A sync port must not wait, because it would block the event loop. Raises `ConfigurationError` also for a port of
    this library that waits. The error names the async class to use instead.
    """

    store: AsyncPaymentStore | PaymentStore | None = field(default=None, validator=_port(PaymentStore))
    wallet_addresses: AsyncWalletAddresses | WalletAddresses | None = field(
        default=None, validator=_port(WalletAddresses)
    )
    introspector: AsyncIntrospector | Introspector | None = field(default=None, validator=_port(Introspector))
    client_keys: AsyncClientKeys | ClientKeys | None = field(default=None, validator=_port(ClientKeys))
    nonces: AsyncNonces | Nonces | None = field(default=None, validator=_port(Nonces))
    methods: AsyncMethodAllocator | MethodAllocator | None = field(default=None, validator=_port(MethodAllocator))
    approval: AsyncApprovalPort | ApprovalPort | None = field(default=None, validator=_port(ApprovalPort))
    approval_s: float = field(default=APPROVAL_S_DEFAULT, validator=_bound)
    quotas: AsyncQuotas | Quotas | None = field(default=None, validator=_port(Quotas))
    erasure: AsyncErasure | Erasure | None = field(default=None, validator=_port(Erasure))
    feed: AsyncFeed | Feed | None = field(default=None, validator=_port(Feed))
    randomness: Callable[[int], bytes] | Callable[[int], Awaitable[bytes]] = field(
        default=secrets.token_bytes, repr=False, validator=_function
    )


def check_for_asyncio(ports: AsyncPorts | Ports) -> None:
    """Raise `ConfigurationError` for a port of this library in `ports` that would block an event loop."""
    if isinstance(ports, Ports):  # `AsyncPorts` has made this check in its constructor
        for each in fields(Ports):
            check_unblocking(each.name, getattr(ports, each.name))
