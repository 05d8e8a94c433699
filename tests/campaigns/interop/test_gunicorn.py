"""A real gunicorn serves an example. It reports malformed chunks by exceptions of its own."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from kits.processes import ROOT, HttpClient, free_port, run_command, serving
from kits.raw_http import answers, exchange

EXAMPLES: Final = ROOT / "examples"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the files that `init` writes."""
    return tmp_path_factory.mktemp("bank")


@pytest.fixture(scope="module")
def port(folder: Path) -> Iterator[int]:
    """Serve the example for Flask with gunicorn, and yield its port."""
    port = free_port()
    assert run_command("init", folder, "--port", str(port)).returncode == 0
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "gunicorn",
        "--chdir",
        EXAMPLES,
        "--bind",
        f"127.0.0.1:{port}",
        "flask_app:app",
    ]
    with serving(command, port, folder / "log", env={"FOLDER": str(folder)}):
        yield port


@pytest.mark.parametrize(
    "chunks",
    [b"zz\r\n", b"0x2\r\n{}\r\n0\r\n\r\n", b"2\r\n{}xx", b"2;a b\r\n{}\r\n0\r\n\r\n", b"0\r\nno field\r\n\r\n"],
    ids=["no size", "size with 0x", "chunk without an end", "malformed extension", "malformed trailer"],
)
def test_malformed_chunk_is_refused(port: int, folder: Path, chunks: bytes) -> None:
    """The client gets 400, the connection closes, and the next request is answered."""
    head = (
        f"POST /incoming-payments HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        "Authorization: GNAP a-token\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    assert answers(exchange(port, head.encode() + chunks)) == [(400, "incomplete_body")]
    assert HttpClient.of(folder, f"http://127.0.0.1:{port}").create().status_code == 201
