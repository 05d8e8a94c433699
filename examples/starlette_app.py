"""The incoming payment service inside a Starlette application.

pip install . starlette uvicorn
incoming-payments init my-bank --port 8000
FOLDER=my-bank uvicorn --app-dir examples starlette_app:app --port 8000
python examples/client.py my-bank          # in a second terminal
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.routing import Route

from bank import async_service
from incoming_payments.hosts.asgi import AsgiApplication

service, store = async_service()
payments = AsgiApplication(service)


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    """Close the store when the server stops."""
    async with store:
        yield


routes = [Route(path + below, payments) for path in payments.paths for below in ("", "/{_:path}")]
app = Starlette(routes=routes, lifespan=lifespan)
