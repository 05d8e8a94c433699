"""The sync and the async introspector behind one set of calls, and an authorization server with many strangers."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from incoming_payments.gnap import AccessToken, AccessTokenInfo, TokenQuery
from incoming_payments.outbound.introspection import AsyncHttpIntrospector, HttpIntrospector
from kits.odd_answers import an_answer
from kits.scripted_server import Exchange
from kits.service_kit import ALICE

ISSUER = "https://auth.bank.example"
QUERY = TokenQuery(AccessToken("T0KEN"), "create", ALICE.url)
RFC = {"dialect": "rfc9767", "issuer": ISSUER, "resource_server": "bank", "audience": "bank"}
RAFIKI = {"dialect": "rafiki", "issuer": None, "resource_server": None, "audience": None}


class Sync:
    """The sync introspector."""

    def __init__(self, url: str, **settings: Any) -> None:
        self._introspector = HttpIntrospector(url, **{**RFC, "allow_http": True, **settings})

    def introspect(self, query: TokenQuery = QUERY) -> AccessTokenInfo | None:
        """Introspect a token."""
        return self._introspector.introspect(query)

    def together(self, *queries: TokenQuery) -> list[object]:
        """Introspect several tokens at the same time, and return the answers and the exceptions."""
        with ThreadPoolExecutor(len(queries)) as pool:
            calls = [pool.submit(self.introspect, query) for query in queries]
            return [call.exception() or call.result() for call in calls]

    def close(self) -> None:
        """Close the connections."""
        self._introspector.close()


class Async:
    """The async introspector, in an event loop of its own."""

    def __init__(self, url: str, **settings: Any) -> None:
        self._introspector = AsyncHttpIntrospector(url, **{**RFC, "allow_http": True, **settings})
        self._runner = asyncio.Runner()

    def introspect(self, query: TokenQuery = QUERY) -> AccessTokenInfo | None:
        """Introspect a token."""
        return self._runner.run(self._introspector.introspect(query))

    def together(self, *queries: TokenQuery) -> list[object]:
        """Introspect several tokens at the same time, and return the answers and the exceptions."""

        async def gather() -> list[object]:
            return await asyncio.gather(*map(self._introspector.introspect, queries), return_exceptions=True)

        return self._runner.run(gather())

    def close(self) -> None:
        """Close the connections and the loop."""
        self._runner.run(self._introspector.aclose())
        self._runner.close()


class Crowd:
    """An authorization server that lets random tokens wait for their answers."""

    def __init__(self) -> None:
        self.answer: object = an_answer()  # for the tokens of the test
        self._reached = threading.Event()  # by a token of the test
        self._released = threading.Event()
        self._released.set()

    def __call__(self, exchange: Exchange, _: int) -> None:
        """Answer a request."""
        if exchange.json()["access_token"].startswith("STRANGER"):
            self._released.wait()
            exchange.answer({"active": False})
        else:
            self._reached.set()
            exchange.answer(self.answer)

    def lets_through(self, query: TokenQuery, introspector: Sync | Async, *, within_s: float) -> bool:
        """Return whether the request for `query` reaches the server while those of many strangers are pending."""
        self._released.clear()
        self._reached.clear()

        def release() -> bool:
            is_reached = self._reached.wait(within_s)
            self._released.set()
            return is_reached

        strangers = [TokenQuery(AccessToken(f"STRANGER-{number}"), "create") for number in range(20)]
        with ThreadPoolExecutor() as pool:
            releasing = pool.submit(release)
            introspector.together(*strangers, query)
            return releasing.result()
