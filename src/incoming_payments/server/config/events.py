"""The part of a configuration that offers the feed of events to consumers over HTTP."""

from collections.abc import Sequence

from attrs import frozen

from incoming_payments.domain.events import EventKind
from incoming_payments.domain.feed import Consumer, Start, consumer_name
from incoming_payments.domain.payment import WalletAddressUrl
from incoming_payments.endpoints.pull import PullConsumer, PullPolicy
from incoming_payments.limits import PEER_TOKENS_MAX, PORT_MAX
from incoming_payments.server.config.files import PeerToken
from incoming_payments.server.config.packets import files
from incoming_payments.server.config.reader import Once, naming, refused
from incoming_payments.server.config.setting import setting, toml
from incoming_payments.server.config.webhooks import WebhookTable


@frozen(kw_only=True)
class EventsTable:
    """The feed of events over HTTP."""

    port: int | None = setting(
        "the port on `host` of `[listen]` where consumers claim and acknowledge events. Let no other client reach this "
        "port; give `[[consumer]]` too",
        None,
        "no feed over HTTP",
        bounds=(1, PORT_MAX),
        written="8081",
    )


@frozen(kw_only=True)
class ConsumerTable:
    """A consumer, which pulls its events over HTTP."""

    name: str = setting(
        "1 to 64 of the characters `a-z0-9._-`. The database keeps the place of the consumer by this name",
        written='"ledger"',
    )
    token_files: tuple[PeerToken, ...] = setting(
        "1 to 8 files, each with one bearer token of 16 characters or more. Each token is valid. To replace a "
        "token, add the new token, let the consumer switch to the new token, and remove the old token",
        check=files(PEER_TOKENS_MAX),
        written='["ledger-token.txt"]',
    )
    kinds: tuple[EventKind, ...] = setting(
        f"a list of the kinds of events that the consumer gets: {', '.join(f'`{kind}`' for kind in EventKind)}",
        (),
        "all",
        written='["credited"]',
    )
    wallet_addresses: tuple[WalletAddressUrl, ...] = setting(
        "a list of the wallet addresses whose events the consumer gets",
        (),
        "all",
        written='["{base_url}/alice"]',
    )
    start: Start = setting(
        f"{' or '.join(f'`{toml(start)}`' for start in Start)}: the events with which a new consumer begins",
        Start.NOW,
    )
    joins_credits: bool = setting("whether consecutive credits of a payment are joined into one delivery", True)


def pull_of(
    events: EventsTable, tables: Sequence[ConsumerTable], webhooks: Sequence[WebhookTable]
) -> PullPolicy | None:
    """Return the consumers of `[[consumer]]`, or `None` if there is none.

    Raises `ConfigurationError`, for example for the name of an endpoint of `webhooks`, which is a consumer too.
    """
    if events.port is None and tables:
        raise refused("events.port", "is missing, but there is a [[consumer]]: give the port for its requests")
    if events.port is not None and not tables:
        raise refused("events.port", "is given, but there is no [[consumer]]: add one, or remove the port")
    names, tokens, found = Once(), Once(), []
    for place, webhook in enumerate(webhooks):
        names.add(webhook.name, f"webhooks[{place}].name", "give each endpoint its own name")
    for place, table in enumerate(tables):
        path = f"consumer[{place}]"
        names.add(table.name, f"{path}.name", "give each consumer a name of its own")
        for number, token in enumerate(table.token_files):
            tokens.add(token.value, f"{path}.token_files[{number}]", "give each file a different token")
        with naming(path, table):
            consumer = Consumer(
                name=consumer_name(table.name),
                kinds=table.kinds or None,
                wallet_addresses=table.wallet_addresses or None,
                joins_credits=table.joins_credits,
            )
            found.append(PullConsumer(consumer=consumer, tokens=table.token_files, start=table.start))
    return PullPolicy(consumers=found) if found else None
