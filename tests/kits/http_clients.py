"""The sync and the async HTTP client behind one set of calls."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from incoming_payments.httpsig import RequestMessage
from incoming_payments.outbound._aiohttp import AsyncHttpClient
from incoming_payments.outbound._http import HttpFailed
from incoming_payments.outbound._urllib3 import HttpClient


class SharedClient:
    """A sync HTTP client that sends its requests at the same time."""

    def __init__(self, **settings: Any) -> None:
        self._client = HttpClient(**settings)

    def send_all(self, urls: list[str], *, timeout_s: float) -> list[object]:
        """Return the answers and the exceptions of concurrent GET requests."""
        with ThreadPoolExecutor(len(urls)) as pool:
            requests = [RequestMessage("GET", url, ()) for url in urls]
            calls = [pool.submit(self._client.send, request, timeout_s=timeout_s) for request in requests]
            return [call.exception() or call.result() for call in calls]

    def send(self, url: str, *, timeout_s: float = 20) -> object:
        """Return the answer to a GET request, or its exception."""
        return self.send_all([url], timeout_s=timeout_s)[0]

    def idle(self, seconds: float) -> None:
        """Let the connections rest."""
        time.sleep(seconds)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


class SharedAsyncClient:
    """The same for the async HTTP client."""

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
