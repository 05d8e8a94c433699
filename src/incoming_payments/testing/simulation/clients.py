"""The operations of clients: create, get, public get, complete and list."""

# ruff: noqa: ARG002 - all operations have the same signatures, and not every one uses each argument

import json
from collections.abc import Hashable
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from attrs import define

from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import (
    CursorNotFound,
    IdempotencyKeyReused,
    IncomingPaymentsError,
    PaymentExists,
    QuotaExceeded,
    StoreError,
)
from incoming_payments.flows.machinery.effects import Flow, InsertPayment
from incoming_payments.httpsig import RequestMessage, sign
from incoming_payments.ilp.stream import StreamKeys
from incoming_payments.testing.simulation.fixtures import CLIENT_KEY, METHODS, POLICY, TOKEN, USD, WALLET
from incoming_payments.testing.simulation.ledger import Expected, Ledger, require
from incoming_payments.testing.simulation.operation import (
    Account,
    Clock,
    Operation,
    Process,
    Task,
    World,
    check_error,
    check_total,
)
from incoming_payments.wire import PaymentView, PublicView, SummaryView

_AUTHORIZED: Final = (("Authorization", f"GNAP {TOKEN}"),)


@define(eq=False)
class Create(Operation):
    """A signed request to create a payment.

    If the request has an idempotency key, the client repeats the request until it gets an answer.
    """

    limit: int | None
    expires_at: datetime | None
    nonce: str | None
    uses: int  # the number of times that the traffic uses the new payment
    idempotency_key: str | None = None
    first_answer: PaymentView | None = None

    @property
    def wants_answer(self) -> bool:  # type: ignore[override]
        return self.idempotency_key is not None

    @property
    def key(self) -> Hashable:
        return (Create, self.idempotency_key, self.body)

    @property
    def body(self) -> bytes:
        """The content of the request, which is the same in each repeat."""
        body: dict[str, Any] = {"walletAddress": WALLET.url}
        if self.limit is not None:
            body["incomingAmount"] = {"value": str(self.limit), "assetCode": USD.code, "assetScale": USD.scale}
        if self.expires_at is not None:
            body["expiresAt"] = self.expires_at.isoformat()
        return json.dumps(body).encode()

    def start(self, world: World, process: Process, clock: Clock) -> Flow[PaymentView]:
        headers: tuple[tuple[str, str], ...] = (*_AUTHORIZED, ("Content-Type", "application/json"))
        keys: tuple[str, ...] = ()
        if self.idempotency_key is not None:
            headers = (*headers, ("Idempotency-Key", f'"{self.idempotency_key}"'))
            keys = ("idempotency-key",)
        request = RequestMessage("POST", f"{POLICY.base_url}/incoming-payments", headers, self.body)
        now = clock()
        signed = sign(request, CLIENT_KEY, created=now, also=keys, nonce=self.nonce)
        return world.flows.create_payment(signed, POLICY, now, clock)

    def check(self, world: World, task: Task, answer: Any, error: IncomingPaymentsError | None) -> bool:
        if error is not None:
            allowed = (PaymentExists, StoreError)
            before_insert = type(task.effect) is not InsertPayment
            if isinstance(error, QuotaExceeded):
                require(before_insert and task.refusal is None, "the quota was checked after the approval")
                return True
            if task.refusal is not None:
                require(before_insert, "the service inserted a payment that the host did not approve")
                require(type(error) is task.refusal.error, f"a create ended with {error!r}, not {task.refusal.kind}")
                # the refusal did not use the key, so a repeated request can be approved
                return self.idempotency_key is None
            late = (
                self.expires_at is not None
                and self.expires_at <= max(task.now, task.clock())
                and error.code == "invalid_terms"
            )
            repeated = self.nonce is not None and error.code == "invalid_signature"
            reused = isinstance(error, IdempotencyKeyReused)
            require(isinstance(error, allowed) or late or repeated or reused, f"a create ended with {error!r}")
            if reused:
                world.state.count("create refused: the key was used for another request")
                use = self._use(world)
                require(use is not None and use[1] != self.body, "the key was not used for another request")
            # A client without a key does not repeat this request, but creates another payment.
            return self.idempotency_key is None or not isinstance(error, allowed)
        id = _id_of(answer)
        if self.idempotency_key is not None:
            require((id, self.body) == self._use(world), f"the idempotency key {self.idempotency_key} has two payments")
            self.first_answer = self.first_answer or answer
            require(answer == self.first_answer, "a repeat of the request got another answer")
        require(id in world.state.ledgers, f"the answer contains the payment {id}, which is not stored")
        require(
            (answer.received_amount.value, answer.completed) == (0, False),
            "a new payment has received money, or is completed",
        )
        return True

    def _use(self, world: World) -> tuple[PaymentId, bytes] | None:
        """Return the payment that was created under the key, and the content of that request."""
        return world.state.keys.get(self.idempotency_key or "")

    def receive_answer(self, world: World, answer: Any) -> None:
        if answer is None:
            return
        (method,) = answer.methods
        secret = METHODS.read(method.ilp_address).shared_secret
        world.add_account(Account(_id_of(answer), method.ilp_address, StreamKeys(secret), self.uses))

    def __str__(self) -> str:
        return f"create(limit={self.limit}, expires_at={self.expires_at}, key={self.idempotency_key})"


def _id_of(view: SummaryView) -> PaymentId:
    return PaymentId(view.id.rpartition("/")[2])


@define(eq=False)
class Get(Operation):
    """A signed request to read a payment."""

    id: PaymentId

    def start(self, world: World, process: Process, clock: Clock) -> Flow[PaymentView]:
        now = clock()
        request = sign(RequestMessage("GET", POLICY.payment_url(self.id), _AUTHORIZED), CLIENT_KEY, created=now)
        return world.flows.get_payment(request, self.id, POLICY, now)

    def check(self, world: World, task: Task, answer: Any, error: IncomingPaymentsError | None) -> bool:
        if error is not None:
            return check_error(task, error)
        assert task.seen is not None  # noqa: S101 - the flow has loaded the payment
        received, state = task.seen
        found = (answer.received_amount.value, answer.completed, bool(answer.methods))
        expected = (received, state == "completed", state in {"pending", "processing"})
        require(
            found == expected, f"a get should return received, completed and methods {expected}, but returned {found}"
        )
        check_total(world, task, self.id, received, completed=answer.completed)
        return True

    def __str__(self) -> str:
        return f"get({self.id})"


@define(eq=False)
class GetPublic(Operation):
    """An unsigned request to read the public view of a payment."""

    id: PaymentId

    def start(self, world: World, process: Process, clock: Clock) -> Flow[PublicView]:
        return world.flows.get_public_payment(self.id, POLICY)

    def check(self, world: World, task: Task, answer: Any, error: IncomingPaymentsError | None) -> bool:
        if error is not None:
            return check_error(task, error)
        assert task.seen is not None  # noqa: S101 - the flow has loaded the payment
        found, expected = answer.received_amount.value, task.seen[0]
        require(found == expected, f"a public get should return received {expected}, but returned {found}")
        check_total(world, task, self.id, found, completed=None)
        return True

    def __str__(self) -> str:
        return f"get_public({self.id})"


@define(eq=False)
class Complete(Operation):
    """A client's request to complete a payment."""

    id: PaymentId
    wants_answer = True
    reads_clock_in_decision = True

    def start(self, world: World, process: Process, clock: Clock) -> Flow[Any]:
        now, url = clock(), f"{POLICY.payment_url(self.id)}/complete"
        request = sign(RequestMessage("POST", url, _AUTHORIZED), CLIENT_KEY, created=now)
        return world.flows.complete_payment(request, self.id, POLICY, now, clock)

    def expect(self, ledger: Ledger, now: datetime) -> Expected:
        return ledger.expect_complete(now)

    def check(self, world: World, task: Task, answer: Any, error: IncomingPaymentsError | None) -> bool:
        if error is not None:
            return check_error(task, error)
        ledger = world.state.ledgers.get(self.id)
        require(
            ledger is not None and ledger.completed,
            "the answer shows a completed payment, but the payment is not completed",
        )
        require(answer.completed, "the answer to a complete request shows a payment that is not completed")
        check_total(world, task, self.id, answer.received_amount.value, completed=True)
        return True

    def __str__(self) -> str:
        return f"complete({self.id})"


@define(eq=False)
class List(Operation):
    """A request for a page of a list. A client lists its own payments. The host lists the payments in one state."""

    limit: int
    cursor: PaymentId | None
    backwards: bool
    state: str | None

    def start(self, world: World, process: Process, clock: Clock) -> Flow[Any]:
        now, size = clock(), {"last" if self.backwards else "first": self.limit}
        if self.state is not None:
            return world.flows.list_for_host(state=self.state, cursor=self.cursor, **size, now=now)
        members = {"wallet-address": WALLET.url, **size, **({"cursor": self.cursor} if self.cursor else {})}
        query = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in members.items())
        url = f"{POLICY.base_url}/incoming-payments?{query}"
        request = sign(RequestMessage("GET", url, _AUTHORIZED), CLIENT_KEY, created=now)
        return world.flows.list_payments(request, query, POLICY, now)

    def check(self, world: World, task: Task, answer: Any, error: IncomingPaymentsError | None) -> bool:
        ledgers = world.state.ledgers
        if isinstance(error, CursorNotFound):
            require(self.cursor not in ledgers, f"the payment {self.cursor} was refused as the cursor of a list")
            world.state.count("cursor refused")
            return True
        if error is not None:
            return check_error(task, error)
        if self.state is not None:
            ids = [payment.id for payment in answer.payments]
        else:
            ids = [_id_of(item) for item in answer.result]
            ends = (answer.start_cursor, answer.end_cursor)
            require(ends == ((ids[0], ids[-1]) if ids else (None, None)), f"the cursors {ends} do not belong to {ids}")
        places = [(ledgers[id].created_at, id) for id in ids]
        require(len(ids) <= self.limit, f"a page of {self.limit} has {len(ids)} payments")
        require(places == sorted(set(places), reverse=True), f"the page is not in the order of creation: {places}")
        return True

    def __str__(self) -> str:
        direction = "before" if self.backwards else "after"
        return f"list({self.limit} {direction} {self.cursor}, state={self.state})"
