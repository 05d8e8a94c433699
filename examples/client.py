"""A client that signs its requests. Run `python examples/client.py FOLDER`, with a folder that `init` has filled.

The service of that folder must be running. The client creates an incoming payment of 25.00 USD, and reads it.
"""

import http.client
import json
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from incoming_payments.httpsig import PrivateKey, RequestMessage, sign

if len(sys.argv) != 2:
    sys.exit(__doc__)
folder = Path(sys.argv[1])
try:
    settings = tomllib.loads((folder / "incoming-payments.toml").read_text("utf-8"))
    key_id = json.loads((folder / "client-key.jwk").read_text("utf-8"))["kid"]
    key = PrivateKey.from_pem((folder / "client-key.pem").read_bytes(), kid=key_id)
except OSError as error:
    sys.exit(f"{error.filename} cannot be read: {error.strerror}; create the folder with `incoming-payments init`")
token = settings["token"][0]["value"]


def send(method: str, url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Send a signed request, print the response, and return its body."""
    content = b"" if body is None else json.dumps(body).encode("utf-8")
    headers = [("Authorization", f"GNAP {token}")]
    if content:
        headers += [("Content-Type", "application/json"), ("Content-Length", str(len(content)))]
    signed = sign(RequestMessage(method, url, tuple(headers), content), key, created=datetime.now(UTC))
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.netloc, timeout=10)
    try:
        connection.request(method, address.path, content or None, dict(signed.headers))
    except OSError as error:
        sys.exit(f"{settings['base_url']} does not answer ({error}): is it running?")
    response = connection.getresponse()
    answer: dict[str, Any] = json.loads(response.read())
    connection.close()
    print(method, url, response.status, json.dumps(answer, indent=2))
    if response.status >= 400:
        sys.exit(1)
    return answer


payment = send(
    "POST",
    f"{settings['base_url']}/incoming-payments",
    {
        "walletAddress": settings["wallet_address"][0]["url"],
        "incomingAmount": {"value": "2500", "assetCode": "USD", "assetScale": 2},
    },
)
send("GET", payment["id"])
