"""Clients that a process opens before a fork serve the parent and its children."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Final

import pytest

from kits.odd_answers import of_rafiki
from kits.processes import ROOT
from kits.scripted_server import Exchange, scripted_server
from kits.service_kit import ed25519_key

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

BEGIN: Final = """
import asyncio, os, socket, sys, threading, time
from incoming_payments.outbound.client_keys import AsyncHttpClientKeys, HttpClientKeys
from incoming_payments.outbound.introspection import AsyncHttpIntrospector, HttpIntrospector
from incoming_payments.outbound.wallet_addresses import HttpWalletAddresses
from incoming_payments.gnap import AccessToken, TokenQuery

url = sys.argv[1]
settings = {"dialect": "rafiki", "allow_http": True}

def query(name):
    return TokenQuery(AccessToken(name), "read")

def show(name, answer):
    os.write(1, f"{name} {getattr(answer, 'client', answer)}\\n".encode())

begun, released = threading.Event(), threading.Event()

def wait_for(*children):
    for child in children:
        _, status = os.waitpid(child, 0)
        assert status == 0, status
"""

SEVERAL_PROCESSES: Final = """
introspector = HttpIntrospector(url, **settings)
introspector.introspect(query("warm-up"))
children = []
for number in range(6):
    name = f"revoked-{number}" if number % 2 else f"token-{number}"
    children.append(os.fork())
    if not children[-1]:
        show(name, introspector.introspect(query(name)))
        sys.exit()
show("parent", introspector.introspect(query("parent")))
wait_for(*children)
"""

REQUEST_IN_FLIGHT: Final = """
introspector = HttpIntrospector(url, **settings)
thread = threading.Thread(target=introspector.introspect, args=(query("slow-1"),))
thread.start()
time.sleep(0.1)
child = os.fork()
if not child:
    show("child", introspector.introspect(query("slow-1")))
    os._exit(0)
thread.join()
wait_for(child)
"""

FETCH_IN_FLIGHT: Final = """
keys = HttpClientKeys(allow_private=True)
client = url.removesuffix("/introspect") + "/slow"
thread = threading.Thread(target=keys.find, args=(client, "key-1"))
thread.start()
time.sleep(0.1)
child = os.fork()
if not child:
    show("child", keys.find(client, "key-1")["kid"])
    os._exit(0)
thread.join()
wait_for(child)
"""

LOOK_UP_IN_PROGRESS: Final = """
known = socket.getaddrinfo
process = os.getpid()

def look_up(*arguments, **options):
    if os.getpid() == process:
        begun.set()
        released.wait()
    return known(*arguments, **options)

socket.getaddrinfo = look_up
introspector = HttpIntrospector(url.replace("127.0.0.1", "localhost"), **settings)
thread = threading.Thread(target=introspector.introspect, args=(query("token-1"),))
thread.start()
begun.wait()
child = os.fork()
if not child:
    show("child", introspector.introspect(query("token-2")))
    os._exit(0)
wait_for(child)
released.set()
thread.join()
"""

LOCK_OF_A_THREAD: Final = """
process = os.getpid()

def clock():
    if os.getpid() == process and threading.current_thread() is not threading.main_thread():
        begun.set()
        released.wait()
    return time.monotonic()

keys = HttpClientKeys(allow_private=True, clock=clock)
client = url.removesuffix("/introspect") + "/client"
thread = threading.Thread(target=keys.find, args=(client, "key-1"))
thread.start()
begun.wait()
child = os.fork()
if not child:
    show("child", keys.find(client, "key-1")["kid"])
    os._exit(0)
wait_for(child)
released.set()
thread.join()
"""

ANOTHER_LOOP: Final = """
introspector = AsyncHttpIntrospector(url, **settings)
keys = AsyncHttpClientKeys(allow_private=True)
client = url.removesuffix("/introspect") + "/client"

async def ask(name):
    show(name, await introspector.introspect(query(name)))
    show(name, (await keys.find(client, "key-1"))["kid"])

with asyncio.Runner() as runner:
    runner.run(ask("parent-1"))
    child = os.fork()
    if not child:
        asyncio.run(ask("child"))
        os._exit(0)
    wait_for(child)
    begin = time.monotonic()
    runner.run(ask("parent-2"))
    assert time.monotonic() - begin < 2
    runner.run(introspector.aclose())
    runner.run(keys.aclose())
"""

WEBHOOKS: Final = """
sys.path.insert(0, sys.argv[2])
from incoming_payments.outbound.webhooks import WebhookSender
from kits.webhook_kit import a_delivery, an_endpoint

endpoint = an_endpoint(url)
delivery, sender = a_delivery(endpoint), WebhookSender(endpoint)

def send_two(name):
    sender(delivery)
    sender(delivery)
    show(name, "sent")

send_two("parent")
child = os.fork()
if not child:
    send_two("child")
    os._exit(0)
wait_for(child)
send_two("parent")
"""


def answer(exchange: Exchange, _: int) -> None:
    """Answer after 20 ms. The answer names its token. A token or a path that begins with `slow` takes longer."""
    is_slow = b"slow" in exchange.body or "/slow" in exchange.head
    exchange.ended.wait(0.3 if is_slow else 0.02)
    if not exchange.body:
        exchange.answer({"keys": [ed25519_key("key-1").public_jwk()]})
    elif exchange.json()["access_token"].startswith("revoked"):
        exchange.answer({"active": False})
    else:
        exchange.answer(of_rafiki(client=f"https://{exchange.json()['access_token']}.example"))


def lines_of(code: str, *, script: Callable[[Exchange, int], None] = answer) -> list[str]:
    """Run `code` in a process with a server for its clients, and return the sorted lines of its processes."""
    with scripted_server(script) as server:
        command = [sys.executable, "-W", "ignore", "-c", BEGIN + code, server.url, str(ROOT / "tests")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return sorted(done.stdout.splitlines())


def test_each_process_gets_its_own_answers() -> None:
    """A kept connection of the parent is not used in a child. Otherwise a revoked token could get an active answer."""
    children = [f"revoked-{n} None" if n % 2 else f"token-{n} https://token-{n}.example" for n in range(6)]
    assert lines_of(SEVERAL_PROCESSES) == sorted([*children, "parent https://parent.example"])


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (REQUEST_IN_FLIGHT, "child https://slow-1.example"),
        (FETCH_IN_FLIGHT, "child key-1"),
        (LOOK_UP_IN_PROGRESS, "child https://token-2.example"),
        (LOCK_OF_A_THREAD, "child key-1"),
    ],
    ids=["a request", "a fetch", "a look-up", "a lock"],
)
def test_child_does_not_wait_for_a_thread_of_its_parent(code: str, line: str) -> None:
    """The child has none of the threads of its parent, so it does their work itself."""
    assert lines_of(code) == [line]


def test_async_clients_serve_a_new_loop_in_a_child() -> None:
    """The child opens connections of its own. Those of the parent stay in use for the loop of the parent."""
    names = ["child", "parent-1", "parent-2"]
    assert lines_of(ANOTHER_LOOP) == sorted(f"{n} {end}" for n in names for end in (f"https://{n}.example", "key-1"))


def test_child_sends_webhooks_on_connections_of_its_own() -> None:
    """The receiver sees one connection for each process, and the parent keeps its connection."""
    connections = []

    def script(exchange: Exchange, _: int) -> None:
        connections.append(exchange.connection.getpeername())
        exchange.answer(b"")

    assert lines_of(WEBHOOKS, script=script) == ["child sent", "parent sent", "parent sent"]
    assert [connections.count(connection) for connection in dict.fromkeys(connections)] == [4, 2]
