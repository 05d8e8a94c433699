"""Compare creates and signed gets with and without the quotas that processes share, in alternating turns.

64 clients have the quotas of `docs/quotas.md`, and 32 unpaid payments each. Each turn pays the payments that it has
created. The time of the requests stands still, so each client has 600 requests.
"""

import asyncio
import itertools
import json
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from _durable import IN_FLIGHT, UNIT, credit_ids
from incoming_payments import (
    AccessRight,
    AccessToken,
    AccessTokenInfo,
    AsyncPorts,
    Request,
    Response,
    StaticIntrospector,
)
from incoming_payments.domain.payment import PaymentId
from incoming_payments.endpoints.open_payments import handle
from incoming_payments.flows.machinery.run import arun
from incoming_payments.flows.receive import receive
from incoming_payments.httpsig import RequestMessage, sign
from incoming_payments.ports.clock import utc_now
from incoming_payments.stores.sqlite import AsyncSqliteStore
from service import BASE_URL, CREATE_BODY, KEY, METHODS, NOW, POLICY, Bank, received

UNPAID: Final = 32
ONE_BY_ONE: Final = 16  # requests of a turn with one in flight
KINDS: Final = tuple(itertools.product(("create", "get"), (1, IN_FLIGHT)))
TOKENS: Final = [f"a-token-of-some-length-as-they-are-{number}" for number in range(IN_FLIGHT)]
INTROSPECTOR: Final = StaticIntrospector(
    [
        (
            AccessToken(token),
            AccessTokenInfo(f"https://shop.example/{number}", KEY.public_jwk(), [AccessRight(["create", "read"])]),
        )
        for number, token in enumerate(TOKENS)
    ]
)


def signed(token: str, method: str, path: str, body: bytes = b"") -> Request:
    """Return a signed request with `token`."""
    headers = [("authorization", f"GNAP {token}")]
    if body:
        headers += [("content-type", "application/json"), ("content-length", str(len(body)))]
    return received(sign(RequestMessage(method, f"{BASE_URL}{path}", tuple(headers), body), KEY, created=NOW))


class Service:
    """A service on a database of its own, with quotas or without."""

    def __init__(self, store: AsyncSqliteStore, *, has_quotas: bool) -> None:
        self._ports = AsyncPorts(
            store=store,
            wallet_addresses=Bank(),
            introspector=INTROSPECTOR,
            methods=METHODS,
            quotas=store.quotas(requests_per_minute=600, unpaid_payments=100) if has_quotas else None,
        )
        self._names = credit_ids("paid")
        self._requests = {"create": [signed(token, "POST", "/incoming-payments", CREATE_BODY) for token in TOKENS]}

    async def prepare(self) -> None:
        """Create the unpaid payments."""
        for _ in range(UNPAID - 1):
            await self._answers(self._requests["create"])
        created = await self._answers(self._requests["create"])
        self._requests["get"] = [
            signed(token, "GET", f"/incoming-payments/{_id(answer)}")
            for token, answer in zip(TOKENS, created, strict=True)
        ]

    async def turn(self, kind: str, in_flight: int) -> float:
        """Return the microseconds of one request."""
        sent, answers = self._requests[kind], list[Response]()
        start = time.perf_counter()
        if in_flight == 1:
            for request in sent[:ONE_BY_ONE]:
                answers += await self._answers([request])
            sent[:] = sent[ONE_BY_ONE:] + sent[:ONE_BY_ONE]
        else:
            answers = await self._answers(sent)
        us = (time.perf_counter() - start) * 1e6 / len(answers)
        if kind == "create":
            await asyncio.gather(*(self._pay(_id(answer)) for answer in answers))
        return us

    async def _pay(self, id: PaymentId) -> None:
        await arun(receive(id, credit_id=next(self._names), amount=UNIT, clock=utc_now), self._ports)

    async def _answers(self, sent: Iterable[Request]) -> list[Response]:
        answers = await asyncio.gather(*(arun(handle(each, policy=POLICY, now=NOW), self._ports) for each in sent))
        assert all(answer.status in (200, 201) for answer in answers), answers
        return answers


def _id(answer: Response) -> PaymentId:
    return PaymentId(json.loads(answer.body)["id"].rpartition("/")[2])


async def measure_quotas(folder: Path, turns: int) -> dict[bool, dict[str, list[float]]]:
    """Return the microseconds of a request by kind, with quotas (`True`) and without, for each turn."""
    names = [f"{kind}, {count} in flight" for kind, count in KINDS]
    spent: dict[bool, dict[str, list[float]]] = {has: {name: [] for name in names} for has in (False, True)}
    async with AsyncExitStack() as open_:
        services = {}
        for has in spent:
            store = await open_.enter_async_context(AsyncSqliteStore(folder / f"quotas-{has}.db"))
            services[has] = Service(store, has_quotas=has)
            await services[has].prepare()
        for turn, (name, (kind, count)) in itertools.product(range(turns), zip(names, KINDS, strict=True)):
            for has in (False, True) if turn % 2 else (True, False):
                spent[has][name].append(await services[has].turn(kind, count))
    return spent
