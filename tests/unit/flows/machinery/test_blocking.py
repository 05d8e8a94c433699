"""A sync port that blocks the event loop is logged, once for each port."""

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from incoming_payments import AsyncIncomingPayments, AsyncPorts, Ports, ServicePolicy
from incoming_payments.domain.payment import WalletAddressUrl
from incoming_payments.errors import IncomingPaymentsError, WalletAddressesUnavailable
from incoming_payments.flows.machinery.blocking import LoopWatch
from incoming_payments.limits import PORT_BLOCKS_S_MAX
from incoming_payments.observers.log import LogEvent
from incoming_payments.stores.memory import MemoryStore

POLICY = ServicePolicy(base_url="https://bank.example", auth_server="https://auth.bank.example")


class SlowAddresses:
    """Wallet addresses that wait for a database in vain."""

    def find(self, url: WalletAddressUrl) -> None:
        """Block the thread, and fail."""
        time.sleep(PORT_BLOCKS_S_MAX * 1.2)
        raise WalletAddressesUnavailable(f"no answer about {url}")


class AsyncSlowAddresses:
    """Wallet addresses that wait in vain without blocking the loop."""

    async def find(self, url: WalletAddressUrl) -> None:
        """Wait, and fail."""
        await asyncio.sleep(PORT_BLOCKS_S_MAX * 1.2)
        raise WalletAddressesUnavailable(f"no answer about {url}")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages about blocked loops."""
    return [one.getMessage() for one in caplog.records if getattr(one, "event", "") == LogEvent.PORT_BLOCKS]


@pytest.mark.parametrize("kind", [Ports, AsyncPorts])
def test_sync_port_that_blocks_the_loop_is_logged_once(
    caplog: pytest.LogCaptureFixture, kind: Callable[..., Any]
) -> None:
    """The line names the port and its method, also when the call fails. The second slow call is not logged."""
    service = AsyncIncomingPayments(policy=POLICY, ports=kind(store=MemoryStore(), wallet_addresses=SlowAddresses()))
    for _ in range(2):
        with pytest.raises(IncomingPaymentsError):
            asyncio.run(service.create(wallet_address="https://bank.example/alice"))
    (line,) = lines(caplog)
    assert re.fullmatch(
        r"incoming payments: wallet_addresses\.find blocked the event loop for [0-9.]+ s: "
        "write this method with async def, so that other requests do not wait",
        line,
    )


def test_async_port_that_waits_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The time in which an async port waits does not count."""
    ports = AsyncPorts(store=MemoryStore(), wallet_addresses=AsyncSlowAddresses())
    with pytest.raises(IncomingPaymentsError):
        asyncio.run(AsyncIncomingPayments(policy=POLICY, ports=ports).create(wallet_address="https://bank.example/a"))
    assert lines(caplog) == []


def test_short_calls_and_ports_of_the_library_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The ports of this library do not wait, so a long call means that the machine is busy."""
    now_s = 0.0
    watch = LoopWatch(lambda: now_s)
    ports = AsyncPorts(store=MemoryStore(), wallet_addresses=SlowAddresses())
    now_s = PORT_BLOCKS_S_MAX
    watch.called("wallet_addresses.find", ports, 0.0)
    now_s = 2 * PORT_BLOCKS_S_MAX
    watch.called("store.load", ports, 0.0)
    assert lines(caplog) == []
    watch.called("wallet_addresses.find", ports, 0.0)
    assert len(lines(caplog)) == 1
