"""The `incoming-payments` command: `init`, `serve`, `backup`, `demo`, and `sign`, which has a module of its own."""

import argparse
import gc
import importlib.metadata
import json
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from incoming_payments.errors import ConfigurationError, IncomingPaymentsError, StoreStopped
from incoming_payments.hosts import demo, sign_command
from incoming_payments.hosts.asgi import AsgiApplication
from incoming_payments.hosts.room import room
from incoming_payments.hosts.settings import Settings, load_settings
from incoming_payments.hosts.sparse_log import SparseFilter
from incoming_payments.httpsig import PrivateKey
from incoming_payments.limits import BACKLOG_CONNECTIONS_MAX, KEEP_ALIVE_S_MAX, SERVER_SECRET_BYTES_MIN
from incoming_payments.ports import AsyncPorts
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore

_SHUTDOWN_S_MAX: Final = 10  # how long requests that are under way may take to end when the server is stopped

CONFIGURATION: Final = "incoming-payments.toml"
CLIENT_KEY: Final = "client-key.pem"
CLIENT_JWK: Final = "client-key.jwk"
SERVER_SECRET: Final = "server-secret.hex"  # noqa: S105 - the name of a file
PEER_TOKEN: Final = "peer-token.txt"  # noqa: S105 - the name of a file

_TEMPLATE: Final = """\
# The configuration of `incoming-payments serve`. File names are looked for beside this file.
# Keep it private: it holds a token.

# The public URL of the service, as clients write it. Payments get their ids, and signatures are checked, with it.
base_url = "{base_url}"

# Where clients ask for grants (GNAP). Told to whoever comes without one.
auth_server = "{base_url}/auth"

# The SQLite file with the payments. Other processes may use it at the same time.
database = "payments.sqlite3"

[listen]
host = "127.0.0.1"
port = {port}
# mount = ""  # the path that requests arrive with; that of base_url unless a proxy strips it

# The wallet addresses that are hosted here: any number of these.
[[wallet_address]]
url = "{base_url}/alice"
asset_code = "USD"
asset_scale = 2
# auth_server = "https://auth.bank.example"  # where this one's grants come from, if elsewhere

# Access tokens, for development. In production an introspector of your own asks your authorization server.
[[token]]
value = "{token}"
client = "{base_url}/a-client"
jwk_file = "{jwk}"  # the client's public key; its private key is in {pem}
rights = [{{ actions = ["create", "read"], identifier = "{base_url}/alice" }}]
# expires_at = 2027-01-01T00:00:00Z

[ilp]
# The ILP address of this service; that of each payment is one segment longer.
address = "test.bank"
# Addresses and shared secrets are derived from these, newest first. To rotate, put a new file in front, and
# drop the last when no payment made under it can receive any more. Whoever holds one can read STREAM packets.
secret_files = ["{secret}"]
# path = "/ilp"                # where peers send their packets to, below base_url
# tolerance_units = 1          # by how much a packet may pass incomingAmount, in minor units ...
# tolerance_basis_points = 100 # ... or in hundredths of a percent of it, whichever is more
# margin_ms = 1000             # what a packet must have left when it is booked, to commit and for the answer to travel

# Peers, which send ILP packets: any number of these, or none. Whoever shows a peer's token is believed that the money
# it brings will be settled, so for one in production make a token of your own, and keep it as you keep money.
[[peer]]
name = "connector"
asset_code = "USD"  # what the account with this peer counts in: it can pay payments in the same asset only
asset_scale = 2
# Each of these tokens is good. To change one, add the new one, let the peer move to it, and drop the old one.
token_files = ["{peer_token}"]
# ilp_address = "test.bank.connector"  # what it is told to use when it asks, by ILDCP

[log]
# explain_signatures = false  # whether to say why a signature was refused, 10 times a minute at most

[limits]
# public_get = true           # whether anybody who knows a payment's URL may see how much it has received
# allow_identical = true      # whether a signed request without nonce may come again while it is fresh
# expiry_s_max = 31622400     # how many seconds ahead expiresAt may lie
# metadata_bytes_max = 8192   # as compact JSON
# metadata_depth_max = 8
# signature_age_s = 300       # how old a signature may be, in seconds
# clock_skew_s = 60           # how many seconds a client's clock may be ahead
# signature_shapes = []       # "php-sdk", "rust-sdk": signature fields as these SDKs write them are read too
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 0, or 1 with a message on stderr, 2 for wrong usage, 130 for Ctrl-C."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except IncomingPaymentsError as error:
        print(f"incoming-payments: {error.description}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130  # 128 + SIGINT, as shells have it
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="incoming-payments", description="Be paid over Open Payments.")
    version = importlib.metadata.version("incoming-payments")
    parser.add_argument("--version", action="version", version=f"incoming-payments {version}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="init | serve | backup | sign | demo")
    command = commands.add_parser("init", help="write a configuration, keys and a development token")
    command.add_argument("folder", type=Path, help="where to; it is made when it is not there")
    command.add_argument("--port", type=int, default=8080, help="the port to listen on (8080)")
    command.set_defaults(run=lambda options: _init(options.folder, options.port))
    command = commands.add_parser("serve", help="serve incoming payments over HTTP")
    command.add_argument("--config", type=Path, default=Path(CONFIGURATION), help=f"the file ({CONFIGURATION})")
    command.set_defaults(run=lambda options: _serve(load_settings(options.config)))
    sign_command.add_parser(commands, CONFIGURATION)
    command = commands.add_parser("backup", help="write a verified copy of the database, also while the service runs")
    command.add_argument("target", type=Path, help="the file to write; it must not exist")
    command.add_argument("--config", type=Path, default=Path(CONFIGURATION), help=f"the file ({CONFIGURATION})")
    command.set_defaults(run=lambda options: _backup(load_settings(options.config), options.target))
    command = commands.add_parser("demo", help="run the whole story: create, pay by STREAM, crash, complete")
    command.set_defaults(run=lambda _: demo.main())
    return parser


def _init(folder: Path, port: int) -> int:
    if not 1 <= port <= 65535:
        raise ConfigurationError(f"--port must be from 1 to 65535, not {port}", setting="port")
    key = PrivateKey.generate_ed25519("client-key-1")
    configuration = _TEMPLATE.format(
        base_url=f"http://127.0.0.1:{port}",
        port=port,
        token=secrets.token_urlsafe(32),
        jwk=CLIENT_JWK,
        pem=CLIENT_KEY,
        secret=SERVER_SECRET,
        peer_token=PEER_TOKEN,
    )
    files = {
        SERVER_SECRET: secrets.token_hex(SERVER_SECRET_BYTES_MIN),
        PEER_TOKEN: secrets.token_urlsafe(32),
        CLIENT_KEY: key.to_pem().decode("ascii"),
        CLIENT_JWK: json.dumps(key.public_jwk(), indent=2),
        CONFIGURATION: configuration,
    }
    _write_all(folder, files)
    print(f"Wrote {', '.join(files)} to {folder}.")
    print(f"Next: incoming-payments serve --config {folder / CONFIGURATION}")
    return 0


def _write_all(folder: Path, files: Mapping[str, str]) -> None:
    """Write new files, all or none of them."""
    written: list[Path] = []
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in files:
            if (folder / name).exists():
                raise ConfigurationError(f"{folder / name} is there already: choose another folder, or move it away")
        for name, text in files.items():
            _write_private(folder / name, text.rstrip("\n") + "\n", written)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise ConfigurationError(f"{folder}: cannot be written: {error.strerror or error}") from None


def _write_private(path: Path, text: str, written: list[Path]) -> None:
    """A new file that nobody else can read, from the first byte on; it is noted as soon as it is there."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    written.append(path)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def _serve(settings: Settings) -> int:
    try:
        import uvicorn

        from incoming_payments.hosts.http_connection import bounded
    except ImportError:
        raise ConfigurationError("serve needs uvicorn and httptools: pip install 'incoming-payments[serve]'") from None
    for warning in settings.warnings:
        print(f"incoming-payments: warning: {warning}", file=sys.stderr)
    connections, backlog = room()
    handler = logging.StreamHandler()
    handler.addFilter(SparseFilter())
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", handlers=[handler]
    )
    stops: list[StoreStopped] = []

    def on_stop(error: StoreStopped) -> None:
        stops.append(error)
        server.should_exit = True

    with open_listener(settings.host, settings.port) as listener:
        config = uvicorn.Config(
            build(settings, AsyncSqliteStore(settings.database, on_stop=on_stop)),
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            lifespan="on",
            http=bounded(connections),
            loop="asyncio",  # with others, if one is installed, the bound on what is read at once does not hold
            ws="none",
            backlog=backlog,
            timeout_keep_alive=KEEP_ALIVE_S_MAX,
            timeout_graceful_shutdown=_SHUTDOWN_S_MAX,
        )
        server = uvicorn.Server(config)

        def stop(*_: object) -> None:
            # Before uvicorn takes the signals over, and after: it raises the one that stopped it again at its end.
            server.should_exit = True

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        print(f"Serving {settings.policy.base_url}/incoming-payments on {settings.host} port {settings.port},")
        if settings.packets is not None:
            print(f"with ILP packets at {settings.policy.base_url}{settings.packets.path};")
        print(f"payments are in {settings.database}. Ctrl-C stops it.", flush=True)
        # What is loaded by now stays: else the collector looks through all of it every so often, and everybody waits.
        gc.freeze()
        server.run(sockets=[listener])
    if stops:
        raise stops[0]  # a supervisor sees the exit status, and restarts the service or raises the alarm
    return 0


def _backup(settings: Settings, target: Path) -> int:
    if not settings.database.exists():
        raise ConfigurationError(f"{settings.database} does not exist: nothing to back up", setting="database")
    with SqliteStore(settings.database) as store:
        store.backup(target)
    print(f"Wrote {target}, and read it back. Keep the configuration and its secrets with it.")
    return 0


def open_listener(host: str, port: int) -> socket.socket:
    """A listening socket: what is wrong with the address is found, and said, before anything else is opened."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG_CONNECTIONS_MAX)
    except (OSError, UnicodeError) as error:  # a UnicodeError: a host name that is none
        why = str(getattr(error, "strerror", None) or error).partition(" (while")[0]  # the address is in ours
        text = f"listen: cannot listen on {host} port {port}: {why}"
        raise ConfigurationError(text, setting="listen") from None


def build(settings: Settings, store: AsyncSqliteStore) -> AsgiApplication:
    """The ASGI application of a configuration, on an open store, which it closes when the server stops."""
    ports = AsyncPorts(
        store=store,
        wallet_addresses=settings.wallet_addresses,
        introspector=settings.introspector,
        nonces=store.nonces,
        methods=settings.methods,
    )
    return AsgiApplication(
        policy=settings.policy,
        ports=ports,
        packets=settings.packets,
        mount=settings.mount,
        explain_refusals=settings.explain_signatures,
        on_shutdown=store.close,
    )


if __name__ == "__main__":
    sys.exit(main())
