"""Run Debian's nginx with `docs/nginx.conf` in front of `serve`, and send requests through it.

Only ports, certificate files, log targets and paths of the machine are replaced in the configuration.
"""

import ipaddress
import json
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from attrs import frozen
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from campaigns.edge.authorization import Other
from incoming_payments.httpsig import PrivateKey
from incoming_payments.server.init import CONFIGURATION, PEER_TOKEN
from kits.processes import COMMAND, ROOT, HttpClient, free_port, run_command, serving

NGINX: Final = shutil.which("nginx") or next(
    (path for path in ("/usr/sbin/nginx", "/usr/local/sbin/nginx") if Path(path).exists()), None
)
TIMEOUT_S: Final = 20.0
UNKNOWN_S: Final = 2.0  # seconds until the authorization server answers for an unknown token
_TEMPORARY: Final = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@frozen
class Edge:
    """A service behind nginx. `port` is that of nginx, and `folder` has the configuration of `serve`.

    `client` has the key and the token of an honest client.
    """

    port: int
    folder: Path
    context: ssl.SSLContext
    client: HttpClient

    @property
    def base_url(self) -> str:
        """Return the URL of the service for clients. Its path has percent-encoded characters."""
        return _base_url(self.port)

    @property
    def peer_token(self) -> str:
        """Return the bearer token of the peer."""
        return (self.folder / PEER_TOKEN).read_text("ascii").strip()

    @contextmanager
    def connection(self) -> Iterator[ssl.SSLSocket]:
        """Open a TLS connection of the honest peer."""
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S)
        with plain, self.context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
            yield secure

    def exchange(self, data: bytes) -> bytes:
        """Send `data` on a new connection, and return all received bytes."""
        received = bytearray()
        with self.connection() as secure, suppress(ConnectionError, ssl.SSLEOFError):
            secure.sendall(data)
            while piece := secure.recv(65536):
                received += piece
        return bytes(received)


def _base_url(port: int) -> str:
    return f"https://127.0.0.1:{port}/o%20p"


@contextmanager
def edge(folder: Path) -> Iterator[Edge]:
    """Run `serve` and nginx on free ports of loopback, and stop both at the end. The token is in the configuration."""
    port = free_port()
    with _running(folder, port) as context:
        yield Edge(port, folder, context, HttpClient.of(folder, _base_url(port)))


@contextmanager
def introspecting_edge(folder: Path) -> Iterator[Edge]:
    """Run `edge` with an authorization server that takes `UNKNOWN_S` seconds for each token that it does not know."""
    port, authorization = free_port(), Other(free_port())
    client = HttpClient(_base_url(port), secrets.token_hex(16), PrivateKey.generate_ed25519("key-1"))
    authorization.start()
    try:
        authorization("issue", token=client.token, actions=["create", "read"], jwk=client.key.public_jwk())
        authorization("fail", fault="delay_unknown", seconds=UNKNOWN_S)
        with _running(folder, port, *authorization.options) as context:
            yield Edge(port, folder, context, client)
    finally:
        authorization.close()


@contextmanager
def _running(folder: Path, port: int, *options: str) -> Iterator[ssl.SSLContext]:
    """Run `serve` with the configuration that `init` writes with `options`, and nginx on `port`."""
    assert NGINX is not None
    behind = free_port()
    assert run_command("init", folder, "--port", str(behind), *options).returncode == 0
    path = folder / CONFIGURATION
    path.write_text(path.read_text("utf-8").replace(f"http://127.0.0.1:{behind}", _base_url(port)), "utf-8")
    context = _certificate(folder)
    configuration = _configuration(folder, port, behind)
    with serving([*COMMAND, "serve", "--config", path], behind, folder / "serve.log"), _nginx(configuration, port):
        yield context


def _configuration(folder: Path, port: int, behind: int) -> Path:
    text = (ROOT / "docs" / "nginx.conf").read_text("utf-8")
    temporary = "".join(f"    {name}_temp_path {folder / name};\n" for name in _TEMPORARY)
    for old, new in (
        ("user www-data;\n", "user root;\n" if os.geteuid() == 0 else ""),  # for the folder of the test
        ("pid /run/nginx.pid;", f"pid {folder / 'nginx.pid'};"),
        ("error_log syslog:server=unix:/dev/log warn;", f"error_log {folder / 'nginx.log'} warn;"),
        ("access_log syslog:server=unix:/dev/log short;", f"access_log {folder / 'access.log'} short;"),
        ("worker_processes auto;", "worker_processes 1;"),
        ("http {\n", "http {\n" + temporary),
        ("server 127.0.0.1:8080 ", f"server 127.0.0.1:{behind} "),
        ("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
        ("server_name bank.example;", "server_name 127.0.0.1;"),
        ("192.0.2.0/28", "127.0.0.1/32"),
        ("/etc/ssl/bank.example.pem", str(folder / "certificate.pem")),
        ("/etc/ssl/bank.example.key", str(folder / "key.pem")),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = folder / "nginx.conf"
    path.write_text(text, "utf-8")
    return path


@contextmanager
def _nginx(configuration: Path, port: int) -> Iterator[None]:
    log = configuration.with_name("nginx-start.log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(NGINX), "-p", str(configuration.parent), "-c", str(configuration), "-g", "daemon off;"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while process.poll() is None and time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.02)
        assert process.poll() is None, log.read_text("utf-8")
        yield
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


def _certificate(folder: Path) -> ssl.SSLContext:
    """Write a key and a certificate for 127.0.0.1, and return a context for clients that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    addresses = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    day = timedelta(days=1)
    builder = builder.not_valid_before(now - day).not_valid_after(now + day)
    certificate = builder.add_extension(addresses, critical=False).sign(key, hashes.SHA256())
    path = folder / "certificate.pem"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return ssl.create_default_context(cafile=path)


def body_of(answer: bytes) -> Any:
    """Return the JSON of one response."""
    return json.loads(answer.partition(b"\r\n\r\n")[2])
