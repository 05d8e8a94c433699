"""`[ilp]` and `[[peer]]`: the receiver and the peers of their settings. `test_settings.py` tests their errors too."""

from typing import Any, Final

from incoming_payments.domain.amount import Asset
from incoming_payments.gnap import AccessToken
from incoming_payments.ilp import Peer
from incoming_payments.server.config.files import PeerToken, ServerSecret
from incoming_payments.server.config.packets import IlpTable, PeerTable, packets_of

ILP: Final = IlpTable(address="test.bank", secret_files=(ServerSecret(bytes(32)),))


def peer(number: int, **changes: Any) -> PeerTable:
    """Return a peer with a token of its own."""
    tokens = (PeerToken(AccessToken(f"PEER-TOKEN-{number:06}")),)
    return PeerTable(**{"name": f"p{number}", "asset_code": "USD", "asset_scale": 2, "token_files": tokens, **changes})


def test_address_of_a_peer_is_below_that_of_the_service() -> None:
    """A peer has its own address, or one with its name."""
    _, packets = packets_of(ILP, [peer(1), peer(2, ilp_address="g.elsewhere")])
    found = [packets.peer_of([f"Bearer PEER-TOKEN-{number:06}"]) for number in (1, 2)]
    assert found == [Peer("test.bank.p1", Asset("USD", 2)), Peer("g.elsewhere", Asset("USD", 2))]
