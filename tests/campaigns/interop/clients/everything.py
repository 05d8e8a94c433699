"""All clients whose requests are built from their sources."""

from typing import Final

from campaigns.interop.clients.more_sdks import DOTNET, EXTENSION, FLIQA, HASHCODE
from campaigns.interop.clients.recipe import Client
from campaigns.interop.clients.sdks import GO, PHP, PYTHON, RUST

CLIENTS: Final[tuple[Client, ...]] = (RUST, PHP, GO, PYTHON, FLIQA, HASHCODE, DOTNET, EXTENSION)
