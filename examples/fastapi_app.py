"""The incoming payment service inside a FastAPI application, with its OpenAPI document at /docs.

pip install . fastapi uvicorn
incoming-payments init my-bank --port 8000
FOLDER=my-bank uvicorn --app-dir examples fastapi_app:app --port 8000
python examples/client.py my-bank          # in a second terminal
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from bank import async_service
from incoming_payments.hosts.asgi import AsgiApplication
from incoming_payments.hosts.fastapi import routes

service, store = async_service()


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Close the store when the server stops."""
    async with store:
        yield


app = FastAPI(lifespan=lifespan)
app.include_router(routes(AsgiApplication(service)))
