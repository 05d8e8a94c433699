"""`incoming-payments init`: write a configuration, keys and tokens for development."""

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from incoming_payments.errors import ConfigurationError
from incoming_payments.httpsig import PrivateKey
from incoming_payments.limits import SERVER_SECRET_BYTES_MIN

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


def init(folder: Path, port: int) -> int:
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
