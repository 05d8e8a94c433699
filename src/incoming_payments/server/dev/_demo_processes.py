"""The processes of the demo: the service, the authorization server, and core banking, which opens the same database."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.events import EventKind
from incoming_payments.domain.payment import STREAM_CREDITS, payment_id
from incoming_payments.errors import IncomingPaymentsError
from incoming_payments.flows.machinery.ports import Ports
from incoming_payments.flows.machinery.run import run
from incoming_payments.flows.receive import receive
from incoming_payments.ports.clock import utc_now
from incoming_payments.stores.sqlite import SqliteStore

USD: Final = Asset("USD", 2)
START_S_MAX: Final = 30.0  # seconds for a process to start; a start without caches takes one or two seconds
_OWN_GROUP: Final = 0  # Ctrl-C reaches only the demo, which ends its processes
_COMMAND: Final = (sys.executable, "-m", "incoming_payments.server.command")


class StoryEnds(Exception):
    """The demo cannot continue, because a process or a response failed."""


def run_command(*arguments: str) -> None:
    """Run a command of `incoming-payments`. Raise `StoryEnds` with the error of the command when it fails."""
    done = subprocess.run([*_COMMAND, *arguments], check=False, capture_output=True, text=True)  # noqa: S603 - our own
    if done.returncode:
        raise StoryEnds(done.stderr.strip())


@contextmanager
def service(folder: Path, port: int) -> Iterator[int]:
    """Run the service in a process, and return the id of the process when it listens.

    SIGKILL ends the process, and must lose no data.
    """
    log = folder / "service.log"
    arguments = ["serve", "--config", str(folder / "incoming-payments.toml")]
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603 - our own command
            [*_COMMAND, *arguments], stdout=output, stderr=output, process_group=_OWN_GROUP
        )
    try:
        _await_port(process, port, log)
        yield process.pid
    finally:
        process.kill()
        process.wait()


class Authorization:
    """The process of the authorization server, which reads requests from its standard input."""

    def __init__(self, process: "subprocess.Popen[str]", url: str) -> None:
        self._process = process
        self.url: Final = url

    def __call__(self, do: str, **arguments: Any) -> Any:
        """Call a method of `testing.authorization_server.AuthorizationServer`, and return its result."""
        return json.loads(_exchange(self._process, json.dumps({"do": do, **arguments}), "authorization server"))


@contextmanager
def authorization_server(port: int, service_jwk: Path) -> Iterator[Authorization]:
    """Run an authorization server. It accepts only requests that the key in `service_jwk` has signed."""
    module = "incoming_payments.testing.authorization_server"
    process = subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-m", module, "--port", str(port), "--service-jwk", str(service_jwk)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=_OWN_GROUP,
    )
    with process:
        try:
            yield Authorization(process, _line_of(process, "authorization server"))
        finally:
            process.communicate()  # `communicate` closes the input, so that the process ends


def _exchange(process: "subprocess.Popen[str]", line: str, name: str) -> str:
    """Write a line to a process, and return the line with the answer."""
    assert process.stdin is not None  # noqa: S101 - our own pipe
    try:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
    except BrokenPipeError:
        raise StoryEnds(f"The {name} process has ended. Its error is printed above.") from None
    return _line_of(process, name)


def _line_of(process: "subprocess.Popen[str]", name: str) -> str:
    assert process.stdout is not None  # noqa: S101 - our own pipe
    if not (line := process.stdout.readline()):
        raise StoryEnds(f"The {name} process has ended. Its error is printed above.")
    return line.rstrip("\n")


class CoreBanking:
    """The core banking process. It reads credits from its standard input, and writes their outcomes to its output."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def __call__(self, id: str, credit_id: str, value: int) -> dict[str, Any]:
        """Credit an amount, and return the outcome once it is durable."""
        return self._request(f"{id} {credit_id} {value}")

    def ledger(self, id: str) -> dict[str, Any]:
        """Return the amount that a payment has `received`, and the number of `credits` from packets."""
        return self._request(id)

    def _request(self, line: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(_exchange(self._process, line, "core banking"))
        return answer


@contextmanager
def core_banking(database: Path) -> Iterator[CoreBanking]:
    """Run a process that embeds the library and opens the database of the service."""
    process = subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-m", "incoming_payments.server.dev._demo_processes", str(database)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=_OWN_GROUP,
    )
    with process:
        try:
            yield CoreBanking(process)
        finally:
            process.communicate()  # `communicate` closes the input, so that the process ends


def credit_all(database: str, lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Make the credit in each line `payment-id credit-id value`, and yield the outcome.

    A line that has only a payment's id yields the ledger of the payment.
    """
    with SqliteStore(database) as store:
        ports = Ports(store=store)
        for line in lines:
            id, *credit_line = line.split()
            if not credit_line:
                yield _ledger(store, id)
                continue
            credit_id, value = credit_line
            try:
                credited = run(receive(id, credit_id=credit_id, amount=Amount(int(value), USD), clock=utc_now), ports)
            except IncomingPaymentsError as error:
                yield {"outcome": error.code, "why": error.description}
            else:
                total = f"received {decimal(credited.received.value, USD.scale)} {USD.code} in all"
                yield {"outcome": "credited", "total": total + (", which completes it" if credited.completes else "")}


def _ledger(store: SqliteStore, id: str) -> dict[str, Any]:
    """Return the total received and the number of credited packets, which the stored events show."""
    credits = [event for event in store.events(payment_id(id)) if event.kind is EventKind.CREDITED]
    names = {event.credit_id for event in credits if str(event.credit_id).startswith(STREAM_CREDITS)}
    return {"received": credits[-1].received.value if credits else 0, "credits": len(names)}


def decimal(value: int, scale: int) -> str:
    """Return `value` minor units at `scale` as text in major units."""
    return f"{Decimal(value).scaleb(-scale):f}"


def free_port() -> int:
    """Return a port that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await_port(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise StoryEnds(f"The service did not start:\n{log.read_text()}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise StoryEnds(f"The service did not listen within {START_S_MAX:.0f} seconds:\n{log.read_text()}")


def _core_banking_main(arguments: Sequence[str]) -> None:
    for outcome in credit_all(arguments[0], iter(sys.stdin)):
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    _core_banking_main(sys.argv[1:])
