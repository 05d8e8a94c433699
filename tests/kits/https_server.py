"""An HTTPS server on loopback with a certificate authority of its own, for the tests of clients."""

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from incoming_payments.outbound._http import new_tls

NAMES: Final = ("localhost", "client.example", "bank.example")  # of the certificate, besides 127.0.0.1


def _certificate(name: str, key: Any, issuer: Any, issuer_key: Any, *extensions: Any) -> x509.Certificate:
    now = datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
    )
    for extension, is_critical in extensions:
        builder = builder.add_extension(extension, is_critical)
    return builder.sign(issuer_key, hashes.SHA256())


@cache
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the TLS contexts of the server and of its clients. The authority of both is new in each process."""
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    key_id = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # certificates only
    ca = _certificate(
        "test CA", ca_key, None, ca_key, (x509.BasicConstraints(True, None), True), (key_id, False), (usage, True)
    )
    names = [*map(x509.DNSName, NAMES), x509.IPAddress(ip_address("127.0.0.1"))]
    leaf = _certificate(
        "test",
        key,
        ca.subject,
        ca_key,
        (x509.SubjectAlternativeName(names), False),
        (x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(key_id), False),
    )
    server, client, pem = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), new_tls(), serialization.Encoding.PEM
    with TemporaryDirectory() as folder:
        chain = Path(folder, "chain.pem")
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        chain.write_bytes(leaf.public_bytes(pem) + private)
        server.load_cert_chain(chain)
    client.load_verify_locations(cadata=ca.public_bytes(pem).decode())
    return server, client


class Peer:
    """The answers of the server, and its requests. Tests change `body`, `status`, `headers` and `answer`."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.paths: list[str] = []
        self.asked = threading.Semaphore(0)  # released at each request
        self.status = 200
        self.body = b"{}"
        self.headers: dict[str, str] = {}
        self.delay_s = 0.0
        self.answer: Callable[[Any], None] | None = None  # replaces the whole answer; takes the socket's file
        self.release = threading.Event()  # set at the end, for answers that hang

    def url(self, path: str = "", host: str = "127.0.0.1", scheme: str = "https") -> str:
        """Return a URL of the server."""
        return f"{scheme}://{host}:{self.port}{path}"

    def publish(self, document: object, status: int = 200) -> None:
        """Answer with `document` from now on."""
        self.body, self.status, self.headers, self.answer = json.dumps(document).encode(), status, {}, None

    def hang(self) -> None:
        """Send one byte a second, and never a whole head."""

        def answer(out: Any) -> None:
            while not self.release.wait(0.05):
                out.write(b"H")
                out.flush()

        self.answer = answer

    def fail(self) -> None:
        """Answer 500 from now on."""
        self.publish({"error": "out of order"}, 500)


@contextmanager
def https_peer(*, tls: bool = True) -> Iterator[Peer]:
    """Serve HTTPS, or plain HTTP, on loopback."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            peer.paths.append(self.path)
            peer.asked.release()
            time.sleep(peer.delay_s)
            try:
                if peer.answer is not None:
                    self.close_connection = True
                    peer.answer(self.wfile)
                    return
                self.send_response(peer.status)
                for name, value in {"Content-Length": str(len(peer.body)), **peer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(peer.body)
            except OSError:
                self.close_connection = True  # the client is gone

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False
        request_queue_size = 128

        def handle_error(self, *_: object) -> None:
            """Report nothing: clients close connections on purpose."""

        def get_request(self) -> tuple[socket.socket, Any]:
            accepted, address = super().get_request()
            accepted.settimeout(5)
            if tls:
                accepted = contexts()[0].wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
            return accepted, address

    server = Server(("127.0.0.1", 0), Handler)
    peer = Peer(server.server_port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield peer
    finally:
        peer.release.set()
        server.shutdown()
        server.server_close()
        thread.join()
