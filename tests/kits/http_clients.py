"""The HTTP client behind sync calls."""

import asyncio
from typing import Any

from incoming_payments.httpsig import RequestMessage
from incoming_payments.outbound._aiohttp import AsyncHttpClient
from incoming_payments.outbound._http import HttpAnswer, HttpFailed


class SharedClient:
    """The HTTP client, in an event loop of its own."""

    def __init__(self, **settings: Any) -> None:
        self._client = AsyncHttpClient(**settings)
        self._runner = asyncio.Runner()

    def send_all(self, urls: list[str], *, timeout_s: float) -> list[object]:
        """Return the answers and the exceptions of concurrent GET requests."""

        async def gather() -> list[object]:
            requests = [RequestMessage("GET", url, ()) for url in urls]
            calls = [self._client.send(request, timeout_s=timeout_s) for request in requests]
            return await asyncio.gather(*calls, return_exceptions=True)

        return self._runner.run(gather())

    def send(self, url: str, *, timeout_s: float = 20) -> object:
        """Return the answer to a GET request, or its exception. The loop sees no event before it sends the request."""

        async def send() -> object:
            try:
                return await self._client.send(RequestMessage("GET", url, ()), timeout_s=timeout_s)
            except HttpFailed as failure:
                return failure

        return self._runner.run(send())

    def idle(self, seconds: float) -> None:
        """Let the connections rest while the loop runs."""
        self._runner.run(asyncio.sleep(seconds))

    def close(self) -> None:
        """Close the connections and the loop."""
        self._runner.run(self._client.aclose())
        self._runner.close()


def send(request: RequestMessage, *, timeout_s: float = 5.0, times: int = 1, **settings: Any) -> HttpAnswer:
    """Send `request` by one HTTP client several times, and return the last answer."""

    async def send_all() -> HttpAnswer:
        client = AsyncHttpClient(**{"bytes_max": 1000, **settings})
        try:
            return [await client.send(request, timeout_s=timeout_s) for _ in range(times)][-1]
        finally:
            await client.aclose()
            await client.aclose()  # it may be repeated

    return asyncio.run(send_all())
