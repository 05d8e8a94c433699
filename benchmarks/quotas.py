"""Measure the processor time that the shared quotas in the SQLite file add to creates and gets, without HTTP.

    nox -s bench -- quotas [--json] [--turns N]

Each turn measures without and with quotas. The figures are the least of all turns, because other work on the machine
can only add to them. 64 callers send the requests of many clients, each of which stays below its quotas.
"""

import argparse
import asyncio
import itertools
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from _report import finish, table
from incoming_payments import AccessRight, AccessTokenInfo, AsyncPorts, AsyncQuotas, TokenQuery
from incoming_payments.endpoints.open_payments import handle
from incoming_payments.flows.machinery.run import arun
from incoming_payments.stores.sqlite import AsyncSqliteStore
from service import CALLERS, CREATE, KEY, METHODS, NOW, POLICY, Bank, endless_payment, received, signed

REQUESTS, UNPAID = 600, 100  # the quotas that `init` suggests
CLIENTS = 100  # clients that send requests at the same time
REQUESTS_OF_CLIENT = 50  # the requests of a client, after which another client takes its place


class _Clients:
    """An introspector that gives each request to the next of `CLIENTS` clients."""

    def __init__(self) -> None:
        self._requests = itertools.count()

    async def introspect(self, _: TokenQuery) -> AccessTokenInfo:
        """Return the client of this request."""
        request = next(self._requests)
        client = f"https://shop.example/{request % CLIENTS}/{request // (CLIENTS * REQUESTS_OF_CLIENT)}"
        return AccessTokenInfo(client, KEY.public_jwk(), [AccessRight(["create", "read-all"])])


async def measure(path: Path, turns: int) -> dict[str, float]:
    """Return the microseconds of a create and a get without and with quotas, and their ratios."""
    async with AsyncSqliteStore(path) as store:
        await store.insert(payment := endless_payment())
        requests = {
            "create": (received(CREATE), 201),
            "get": (received(signed("GET", f"/incoming-payments/{payment.answer.id}")), 200),
        }
        shared = store.quotas(requests_per_minute=REQUESTS, unpaid_payments=UNPAID)
        clients = _Clients()

        async def time_of(name: str, quotas: AsyncQuotas | None) -> float:
            request, status = requests[name]
            ports = AsyncPorts(
                store=store, wallet_addresses=Bank(), introspector=clients, methods=METHODS, quotas=quotas
            )

            async def answer() -> None:
                response = await arun(handle(request, policy=POLICY, now=NOW), ports)
                assert response.status == status, response

            return await _time_us(answer)

        figures: dict[str, float] = {}
        for name in requests:
            await time_of(name, shared)
            times: dict[bool, list[float]] = {False: [], True: []}
            for turn in range(2 * turns):
                has_quotas = turn % 4 in (1, 2)  # in another order in each turn
                times[has_quotas].append(await time_of(name, shared if has_quotas else None))
            figures[f"{name}_without"], figures[f"{name}_with"] = min(times[False]), min(times[True])
            figures[f"{name}_cost_ratio"] = figures[f"{name}_with"] / figures[f"{name}_without"]
        return figures


async def _time_us(action: Callable[[], Awaitable[None]]) -> float:
    """Return the processor time of one `action`, which other work on the machine changes little."""
    turns = iter(range(256))

    async def caller() -> None:
        for _ in turns:
            await action()

    begin_s = time.process_time()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return (time.process_time() - begin_s) / 256 * 1e6


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description="Measure the cost of shared quotas.")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON on the last line")
    parser.add_argument("--turns", type=int, default=60, help="how many pairs to measure (60)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(measure(Path(folder) / "quotas.sqlite3", options.turns))
    figures["quota_cost_ratio"] = max(figures["create_cost_ratio"], figures["get_cost_ratio"])
    rows = [
        [
            name,
            *(f"{figures[f'{name}_{way}']:,.0f}" for way in ("without", "with")),
            f"{figures[f'{name}_cost_ratio']:.3f}",
        ]
        for name in ("create", "get")
    ]
    table(f"Shared quotas, {CALLERS} callers", ["us of processor time", "without", "with quotas", "ratio"], rows)
    finish({name: round(value, 3) for name, value in figures.items()}, as_json=options.json)


if __name__ == "__main__":
    main()
