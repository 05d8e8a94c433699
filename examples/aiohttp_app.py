"""The incoming payment service inside an aiohttp server.

pip install . aiohttp
incoming-payments init my-bank --port 8080
FOLDER=my-bank PYTHONPATH=examples python -m aiohttp.web -H 127.0.0.1 -P 8080 aiohttp_app:app
python examples/client.py my-bank          # in a second terminal
"""

from collections.abc import AsyncIterator

from aiohttp import web

from bank import async_service
from incoming_payments.hosts.aiohttp import routes
from incoming_payments.hosts.asgi import AsgiApplication

service, store = async_service()


async def close_store(_: web.Application) -> AsyncIterator[None]:
    """Close the store when the server stops."""
    async with store:
        yield


def app(_: list[str]) -> web.Application:
    """Return the application. `aiohttp.web` passes the arguments of its command line."""
    # The endpoints refuse compressed bodies, and the default of aiohttp decompresses them: 64 KB become 64 MB.
    application = web.Application(handler_args={"auto_decompress": False})
    application.add_routes(routes(AsgiApplication(service)))
    application.cleanup_ctx.append(close_store)
    return application
