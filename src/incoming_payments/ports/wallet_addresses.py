"""The wallet addresses that the host serves."""

from typing import Protocol

from incoming_payments.domain.payment import (
    InactiveWalletAddress,
    WalletAddress,
    WalletAddressUrl,
)


class WalletAddresses(Protocol):
    """The wallet addresses that this ASE hosts."""

    def find(self, url: WalletAddressUrl) -> WalletAddress | InactiveWalletAddress | None:
        """Return the wallet address with this URL (as `wallet_address_url` writes it), or `None`.

        Return an `InactiveWalletAddress` if the wallet address accepts no new payments. Its existing payments still
        receive money.
        """


class AsyncWalletAddresses(Protocol):
    """`WalletAddresses` with an `async def` method."""

    async def find(self, url: WalletAddressUrl) -> WalletAddress | InactiveWalletAddress | None: ...
